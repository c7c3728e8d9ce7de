// Validates a dashboard with the schema of Grafana: go run . DASHBOARD. Unknown fields are errors.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/table"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

func validate(text []byte) error {
	var read dashboard.Dashboard
	err := read.UnmarshalJSONStrict(text)
	// Without errors, the result is an empty list instead of nil.
	var list cog.BuildErrors
	if err != nil && !(errors.As(err, &list) && len(list) == 0) {
		return err
	}
	return read.Validate()
}

func main() {
	runtime := cog.NewRuntime()
	runtime.RegisterDataqueryVariant(prometheus.VariantConfig())
	runtime.RegisterPanelcfgVariant(stat.VariantConfig())
	runtime.RegisterPanelcfgVariant(table.VariantConfig())
	runtime.RegisterPanelcfgVariant(timeseries.VariantConfig())
	text, err := os.ReadFile(os.Args[1])
	if err == nil {
		err = validate(text)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, field := range []string{"expr", "gridPos", "templating"} {
		name := []byte(fmt.Sprintf("%q", field))
		wrong := bytes.Replace(text, name, []byte(`"unknownField"`), 1)
		if validate(wrong) == nil {
			fmt.Fprintln(os.Stderr, "an unknown field was accepted instead of", field)
			os.Exit(1)
		}
	}
}
