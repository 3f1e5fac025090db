package fields

const (
	HTTPStatusCode = "status"
	DurationS      = "duration_s"
)

type Deprecation struct{ Standard string }

var Deprecated = map[string]Deprecation{}
var VariantVersion = map[string]int{}
