// Command dra is a driver for dynamic resource allocation that grants cards which are not there, each as a whole.
//
//	dra -count 4 -node /path/gpu%d -bad /path/bad -cdi /path/cdi -name k1 -kubeconfig /path/of/the/node
//
// The cards are those of the command gpus, and behave as they do.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

const (
	driver = "gpu.onejob.invalid"
	kind   = "onejob.invalid/gpu"
)

type plugin struct {
	count, first         int
	node, bad, cdi, name string
}

type object = map[string]any

// PrepareResourceClaims writes for each claim what a container gets that has it.
func (p *plugin) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	all := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		var granted []kubeletplugin.Device
		var devices []object
		var ids []string
		for _, one := range claim.Status.Allocation.Devices.Results {
			if one.Driver != driver {
				continue
			}
			number := strings.TrimPrefix(one.Device, "gpu")
			name := string(claim.UID) + "-" + one.Device
			ids = append(ids, "GPU-fake-"+number)
			devices = append(devices, object{"name": name, "containerEdits": object{"deviceNodes": []object{
				{"path": "/dev/nvidia" + number, "hostPath": strings.ReplaceAll(p.node, "%d", number)},
			}}})
			granted = append(granted, kubeletplugin.Device{
				Requests: []string{one.Request}, PoolName: one.Pool, DeviceName: one.Device, CDIDeviceIDs: []string{kind + "=" + name},
			})
		}
		env := []string{"NVIDIA_VISIBLE_DEVICES=" + strings.Join(ids, ",")}
		spec, err := json.Marshal(object{"cdiVersion": "0.6.0", "kind": kind, "devices": devices, "containerEdits": object{"env": env}})
		if err == nil {
			err = os.WriteFile(p.fileOf(claim.UID), spec, 0o644)
		}
		fmt.Println("granted", ids)
		all[claim.UID] = kubeletplugin.PrepareResult{Devices: granted, Err: err}
	}
	return all, nil
}

func (p *plugin) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	all := map[types.UID]error{}
	for _, claim := range claims {
		_ = os.Remove(p.fileOf(claim.UID))
		all[claim.UID] = nil
	}
	return all, nil
}

func (p *plugin) fileOf(claim types.UID) string { return filepath.Join(p.cdi, string(claim)+".json") }

func (p *plugin) HandleError(_ context.Context, err error, said string) {
	fmt.Fprintln(os.Stderr, said, err)
}

// WatchHealthStatus says it ten times a second: no event tells of a file that is not there yet.
func (p *plugin) WatchHealthStatus(until context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	var last string
	var at time.Time
	for {
		text, _ := os.ReadFile(p.bad)
		if now := string(text); now != last || time.Since(at) > 10*time.Second {
			last, at = now, time.Now()
			select {
			case <-until.Done():
				return nil
			case reports <- p.health(strings.Fields(now)):
			}
		}
		select {
		case <-until.Done():
			return nil
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (p *plugin) health(bad []string) kubeletplugin.DeviceHealthReport {
	var report kubeletplugin.DeviceHealthReport
	for at := p.first; at < p.first+p.count; at++ {
		state := kubeletplugin.HealthStatusHealthy
		if slices.Contains(bad, fmt.Sprint("GPU-fake-", at)) {
			state = kubeletplugin.HealthStatusUnhealthy
		}
		report.Devices = append(report.Devices, kubeletplugin.DeviceHealth{
			PoolName: p.name, DeviceName: fmt.Sprint("gpu", at), Health: state, LastUpdated: time.Now(),
		})
	}
	return report
}

func (p *plugin) cards() []resourceapi.Device {
	var all []resourceapi.Device
	model := "NVIDIA A100-SXM4-80GB"
	for at := p.first; at < p.first+p.count; at++ {
		uuid := fmt.Sprint("GPU-fake-", at)
		all = append(all, resourceapi.Device{
			Name:       fmt.Sprint("gpu", at),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"uuid": {StringValue: &uuid}, "productName": {StringValue: &model}},
			Capacity:   map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("80Gi")}},
		})
	}
	return all
}

func (p *plugin) run(kubeconfig, root string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	data := filepath.Join(root, "plugins", driver)
	if err := os.MkdirAll(data, 0o750); err != nil {
		return err
	}
	helper, err := kubeletplugin.Start(context.Background(), p, kubeletplugin.KubeClient(client), kubeletplugin.NodeName(p.name),
		kubeletplugin.DriverName(driver), kubeletplugin.RegistrarDirectoryPath(filepath.Join(root, "plugins_registry")),
		kubeletplugin.PluginDataDirectoryPath(data))
	if err != nil {
		return err
	}
	pool := resourceslice.Pool{Slices: []resourceslice.Slice{{Devices: p.cards()}}}
	return helper.PublishResources(context.Background(), resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{p.name: pool}})
}

func main() {
	p := &plugin{}
	root := flag.String("root", "/var/lib/kubelet", "the kubelet's folder")
	kubeconfig := flag.String("kubeconfig", "", "of the node")
	flag.IntVar(&p.count, "count", 2, "how many")
	flag.IntVar(&p.first, "first", 0, "number of the first")
	flag.StringVar(&p.node, "node", "", "device node of card %d")
	flag.StringVar(&p.bad, "bad", "", "file that names those that are unhealthy")
	flag.StringVar(&p.cdi, "cdi", "", "where containerd looks for what containers get")
	flag.StringVar(&p.name, "name", "", "of the node")
	flag.Parse()
	if err := p.run(*kubeconfig, *root); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	select {}
}
