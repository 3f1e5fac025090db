package spec

type Inputs struct{ metricsCollector *JobInputsMetricsCollector }

type InputExpander interface{ Expand(*Inputs) error }

func (i *Inputs) UnmarshalJSON([]byte) error                       { return nil }
func (i *Inputs) SetMetricsCollector(c *JobInputsMetricsCollector) { i.metricsCollector = c }
func (i *Inputs) Expand(text string) (string, error)               { return text, nil }
func ExpandInputs(*Inputs, any) error                              { return nil }
