// Command scale-set-probe lives the life of a scale set with GitHub's own client and listener, against the server at a URL.
//
//	scale-set-probe <organisation's URL> <client ID of an app> <its installation> <jobs> < <its private key>
//
// It prints one JSON object per event. Whoever reads it starts a runner for each event "runner". It ends after so many jobs.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/actions/scaleset"
	"github.com/actions/scaleset/listener"
)

type event struct {
	Event  string `json:"event"`
	Name   string `json:"name,omitempty"`
	Config string `json:"config,omitempty"`
	Result string `json:"result,omitempty"`
	Count  int    `json:"count,omitempty"`
}

func say(e event) {
	if err := json.NewEncoder(os.Stdout).Encode(e); err != nil {
		panic(err)
	}
}

// probe keeps as many runners as the listener asks for.
type probe struct {
	client             *scaleset.Client
	set, wanted        int
	made, alive, ended int
	stop               context.CancelFunc
}

func (p *probe) HandleJobStarted(_ context.Context, job *scaleset.JobStarted) error {
	say(event{Event: "started", Name: job.RunnerName, Result: job.JobDisplayName})
	return nil
}

func (p *probe) HandleJobCompleted(_ context.Context, job *scaleset.JobCompleted) error {
	say(event{Event: "completed", Name: job.RunnerName, Result: job.Result})
	p.alive--
	if p.ended++; p.ended == p.wanted {
		p.stop()
	}
	return nil
}

func (p *probe) HandleDesiredRunnerCount(ctx context.Context, count int) (int, error) {
	for ; p.alive < count; p.alive++ {
		p.made++
		setting := &scaleset.RunnerScaleSetJitRunnerSetting{Name: fmt.Sprintf("probe-%d", p.made), WorkFolder: "_work"}
		jit, err := p.client.GenerateJitRunnerConfig(ctx, setting, p.set)
		if err != nil {
			return 0, err
		}
		say(event{Event: "runner", Name: jit.Runner.Name, Config: jit.EncodedJITConfig})
	}
	return count, nil
}

func live(ctx context.Context, url string, app scaleset.GitHubAppAuth, wanted int) error {
	client, err := scaleset.NewClientWithGitHubApp(scaleset.ClientWithGitHubAppConfig{
		GitHubConfigURL: url,
		GitHubAppAuth:   app,
		SystemInfo:      scaleset.SystemInfo{System: "onejob-test", Version: "1"},
	})
	if err != nil {
		return err
	}
	group, err := client.GetRunnerGroupByName(ctx, "default")
	if err != nil {
		return err
	}
	set, err := client.CreateRunnerScaleSet(ctx, &scaleset.RunnerScaleSet{
		Name:          "gpu",
		RunnerGroupID: group.ID,
		Labels:        []scaleset.Label{{Name: "gpu", Type: "System"}},
		RunnerSetting: scaleset.RunnerSetting{DisableUpdate: true},
	})
	if err != nil {
		return err
	}
	session, err := client.MessageSessionClient(ctx, set.ID, "onejob-test")
	if err != nil {
		return err
	}
	loop, err := listener.New(session, listener.Config{ScaleSetID: set.ID, MaxRunners: 2})
	if err != nil {
		return err
	}
	say(event{Event: "ready"})
	listening, stop := context.WithCancel(ctx)
	defer stop()
	p := &probe{client: client, set: set.ID, wanted: wanted, stop: stop}
	if err := loop.Run(listening, p); p.ended != wanted {
		return fmt.Errorf("the listener ended after %d jobs: %w", p.ended, err)
	}
	if err := session.Close(ctx); err != nil {
		return err
	}
	return client.DeleteRunnerScaleSet(ctx, set.ID)
}

func run() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	installation, err := strconv.ParseInt(os.Args[3], 10, 64)
	if err != nil {
		return err
	}
	wanted, err := strconv.Atoi(os.Args[4])
	if err != nil {
		return err
	}
	key, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	app := scaleset.GitHubAppAuth{ClientID: os.Args[2], InstallationID: installation, PrivateKey: string(key)}
	return live(ctx, os.Args[1], app, wanted)
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	say(event{Event: "deleted"})
}
