package steps

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/sirupsen/logrus"
	"gitlab.com/gitlab-org/gitlab-runner/common/spec"
	"gitlab.com/gitlab-org/step-runner/pkg/api/client"
	"gitlab.com/gitlab-org/step-runner/schema/v1"
)

var ErrNoStepRunnerButOkay = errors.New("native steps are not built in")

type Connector interface {
	Connect(ctx context.Context) (func() (io.ReadWriteCloser, error), error)
}
type JobInfo struct {
	ID         int64
	Timeout    time.Duration
	ProjectDir string
	Variables  spec.Variables
}
type ClientStatusError struct {
	Status client.Status
	Err    error
}

func (e *ClientStatusError) Error() string { return e.Err.Error() }

type ClientInternalError struct{ Err error }

func (e *ClientInternalError) Error() string { return e.Err.Error() }

type Options struct {
	Connector      Connector
	JobInfo        JobInfo
	Steps          []schema.Step
	Trace          io.Writer
	RegisterCancel func(context.CancelFunc)
	Log            *logrus.Entry
}

func Execute(context.Context, Options) error { return errors.New("native steps are not built in") }
