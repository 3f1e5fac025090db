package common

import (
	"context"
	"errors"

	"gitlab.com/gitlab-org/gitlab-runner/common/spec"
	"gitlab.com/gitlab-org/step-runner/schema/v1"
)

const stepRunBuildStage = BuildStage("step_" + spec.StepNameRun)

func stepDispatch(*Build, Executor, BuildStage) (bool, []schema.Step) { return false, nil }

func stagesToConcreteStep(context.Context, Executor) ([]schema.Step, error) {
	return nil, errors.New("native steps are not built in")
}
