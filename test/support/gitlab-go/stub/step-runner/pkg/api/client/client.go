package client

type ErrorKind int

const (
	ErrorUnknown ErrorKind = iota
	ErrorInternal
	ErrorStepFailure
	ErrorCancelled
	ErrorTimeout
)

type Status struct {
	ErrorKind ErrorKind
	Message   string
}
