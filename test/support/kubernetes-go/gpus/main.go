// Command gpus is a device plugin that grants cards which are not there.
//
//	gpus -count 4 -node /path/gpu%d -bad /path/bad
//
// Behind a card's node is no driver: to open it says ENXIO where a container has the card, and EPERM where it has not. A line "GPU-fake-2"
// in the file of bad ones makes that card unhealthy.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const prefix = "GPU-fake-"

type plugin struct {
	api.UnimplementedDevicePluginServer
	count, first int
	node, bad    string
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (p *plugin) cards() []*api.Device {
	text, _ := os.ReadFile(p.bad)
	bad := strings.Fields(string(text))
	var all []*api.Device
	for at := p.first; at < p.first+p.count; at++ {
		card := &api.Device{ID: fmt.Sprint(prefix, at), Health: api.Healthy}
		if slices.Contains(bad, card.ID) {
			card.Health = api.Unhealthy
		}
		all = append(all, card)
	}
	return all
}

// ListAndWatch looks at the file ten times a second: no event tells of one that is not there yet.
func (p *plugin) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	for last := ""; stream.Context().Err() == nil; time.Sleep(100 * time.Millisecond) {
		cards := p.cards()
		text := fmt.Sprint(cards)
		if text == last {
			continue
		}
		last = text
		if err := stream.Send(&api.ListAndWatchResponse{Devices: cards}); err != nil {
			return err
		}
	}
	return stream.Context().Err()
}

func (p *plugin) Allocate(_ context.Context, asked *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	for _, container := range asked.ContainerRequests {
		granted := &api.ContainerAllocateResponse{Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(container.DevicesIds, ",")}}
		for _, id := range container.DevicesIds {
			number := strings.TrimPrefix(id, prefix)
			granted.Devices = append(granted.Devices, &api.DeviceSpec{
				ContainerPath: "/dev/nvidia" + number, HostPath: strings.ReplaceAll(p.node, "%d", number), Permissions: "rw",
			})
		}
		fmt.Println("granted", container.DevicesIds)
		answer.ContainerResponses = append(answer.ContainerResponses, granted)
	}
	return answer, nil
}

func main() {
	p := &plugin{}
	folder := flag.String("folder", api.DevicePluginPath, "where the kubelet looks for plugins")
	resource := flag.String("resource", "nvidia.com/gpu", "what pods call it")
	flag.IntVar(&p.count, "count", 2, "how many")
	flag.IntVar(&p.first, "first", 0, "number of the first")
	flag.StringVar(&p.node, "node", "", "device node of card %d")
	flag.StringVar(&p.bad, "bad", "", "file that names those that are unhealthy")
	flag.Parse()
	for {
		if err := p.serve(*folder, *resource); err != nil {
			fmt.Fprintln(os.Stderr, err)
			time.Sleep(100 * time.Millisecond)
		}
	}
}

// serve returns when the kubelet has emptied the folder, as it does when it starts: then all is to be done again.
func (p *plugin) serve(folder, resource string) error {
	socket := filepath.Join(folder, "gpus.sock")
	_ = os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	defer server.Stop()
	api.RegisterDevicePluginServer(server, p)
	go func() { _ = server.Serve(listener) }()
	if err := register(filepath.Join(folder, "kubelet.sock"), resource); err != nil {
		return err
	}
	fmt.Println("registered")
	for {
		if _, err := os.Stat(socket); err != nil {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func register(kubelet, resource string) error {
	within, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	connection, err := grpc.NewClient("unix://"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	_, err = api.NewRegistrationClient(connection).Register(within, &api.RegisterRequest{
		Version: api.Version, Endpoint: "gpus.sock", ResourceName: resource,
	})
	return err
}
