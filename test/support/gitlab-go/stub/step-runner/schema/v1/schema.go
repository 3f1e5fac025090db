package schema

type Step struct {
	Name *string `json:"name,omitempty"`
	Run  []Step  `json:"run,omitempty"`
}
