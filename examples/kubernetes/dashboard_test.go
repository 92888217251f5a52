// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	grafana "github.com/grafana/grafana-foundation-sdk/go/dashboard"
	grafanaprometheus "github.com/grafana/grafana-foundation-sdk/go/prometheus"
	statpanel "github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
	"github.com/prometheus/client_golang/prometheus"
	promql "github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/examples/kubernetes/internal/dashboard"
	"github.com/verbena-go/verbena/ibverbs/stat"
	"github.com/verbena-go/verbena/prometheus/collector"
)

const dashboardFile = "exporter/dashboard.json"

// The dashboard is what Grafana's schema says.
func TestDashboardIsOfThePublishedType(t *testing.T) {
	runtime := cog.NewRuntime()
	runtime.RegisterPanelcfgVariant(timeseries.VariantConfig())
	runtime.RegisterPanelcfgVariant(statpanel.VariantConfig())
	runtime.RegisterDataqueryVariant(grafanaprometheus.VariantConfig())
	text, err := os.ReadFile(dashboardFile)
	require.NoError(t, err)
	decode := func(text string) error {
		//lint:ignore SA1019 the classic form, which each Grafana imports
		d := grafana.Dashboard{}
		if err := d.UnmarshalJSONStrict([]byte(text)); err != nil && err.Error() != "" { // an empty list is an error, too
			return err
		}
		return d.Validate()
	}
	require.NoError(t, decode(string(text)))
	for old, changed := range map[string]string{
		`"gridPos"`: `"grid"`, `"expr"`: `"query"`, `"drawStyle"`: `"style"`, `"includeAll"`: `"all"`, `"schemaVersion": 39`: `"schemaVersion": "39"`,
	} {
		require.Contains(t, string(text), old)
		require.Error(t, decode(strings.ReplaceAll(string(text), old, changed)), changed)
	}
}

// described returns the labels of the metrics that the collector describes in
// its source, by name.
func described(t *testing.T) map[string][]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../prometheus/collector/collector.go", nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	all := map[string][]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) != 4 {
			return true
		}
		f, ok := call.Fun.(*ast.SelectorExpr)
		name, isText := call.Args[0].(*ast.BasicLit)
		if !ok || f.Sel.Name != "NewDesc" || !isText {
			return true
		}
		metric, err := strconv.Unquote(name.Value)
		require.NoError(t, err)
		for _, label := range call.Args[2].(*ast.CompositeLit).Elts {
			text, err := strconv.Unquote(label.(*ast.BasicLit).Value)
			require.NoError(t, err)
			all[metric] = append(all[metric], text)
		}
		return true
	})
	require.NotEmpty(t, all)
	return all
}

// counted returns the labels of the metrics that the collector makes of the
// counters of a port with all of these names.
func counted(t *testing.T, names []string) map[string][]string {
	t.Helper()
	sys := t.TempDir()
	for _, name := range names {
		if !strings.HasPrefix(name, "rdma_port_") {
			continue
		}
		rest := strings.TrimSuffix(strings.TrimPrefix(name, "rdma_port_"), "_total")
		var paths []string
		switch hardware, isHardware := strings.CutPrefix(rest, "hw_"); {
		case isHardware:
			paths = []string{"mlx5_0/ports/1/hw_counters/" + hardware}
		case strings.HasPrefix(rest, "cm_"):
			paths = []string{"mlx5_0/ports/1/" + rest + "/req"}
		default:
			rest = strings.TrimSuffix(rest, "_bytes")
			paths = []string{"mlx5_0/ports/1/counters/" + rest, "mlx5_1/ports/1/counters/port_" + rest}
		}
		for _, path := range paths {
			path = filepath.Join(sys, "class/infiniband", path)
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
			require.NoError(t, os.WriteFile(path, []byte("1\n"), 0o600))
		}
	}
	registry := prometheus.NewRegistry()
	require.NoError(t, registry.Register(collector.New(collector.Config{Sysfs: stat.Sysfs(sys), NoResources: true, NoSoft: true})))
	families, err := registry.Gather()
	require.NoError(t, err)
	all := map[string][]string{}
	for _, family := range families {
		for _, label := range family.GetMetric()[0].GetLabel() {
			all[family.GetName()] = append(all[family.GetName()], label.GetName())
		}
	}
	return all
}

// window is what $__rate_interval stands for here.
const window = time.Minute

// legendLabel is a label in a legend.
var legendLabel = regexp.MustCompile(`{{(\w+)}}`)

// dashboardProblems returns a text for each metric and label of the panels that
// the collector does not export, and for panels in each other's place.
func dashboardProblems(t *testing.T, d *dashboard.Dashboard) (found []string) {
	t.Helper()
	say := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	known := described(t)
	var metrics []string
	exprs := map[string]promql.Expr{}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			expr, err := target.Parse(window)
			if err != nil {
				say("%s: %v", p.Title, err)
				continue
			}
			exprs[target.Expr] = expr
			for _, metric := range dashboard.Metrics(expr) {
				if known[metric] == nil {
					metrics = append(metrics, metric)
				}
			}
		}
	}
	counters := counted(t, metrics)
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			if exprs[target.Expr] == nil {
				continue
			}
			labels := []string{"node"}
			for _, metric := range dashboard.Metrics(exprs[target.Expr]) {
				of, ok := known[metric]
				if !ok {
					if of, ok = counters[metric]; !ok {
						say("%s: the collector has no metric %s", p.Title, metric)
					}
				}
				labels = append(labels, of...)
			}
			for _, name := range labelsOf(exprs[target.Expr], target.LegendFormat) {
				if !slices.Contains(labels, name) {
					say("%s: %s has no label %s", p.Title, target.Expr, name)
				}
			}
		}
	}
	for i, p := range d.Panels {
		if p.Type != dashboard.Row && (p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0) {
			say("%s has no unit, or no expression", p.Title)
		}
		if p.GridPos.X+p.GridPos.W > 24 {
			say("%s is beyond the right edge", p.Title)
		}
		for _, q := range d.Panels[:i] {
			if p.GridPos.Overlaps(q.GridPos) {
				say("%s and %s are in one place", p.Title, q.Title)
			}
		}
	}
	return found
}

// labelsOf returns the labels that an expression selects and groups by, and
// those of its legend, which must be among the latter.
func labelsOf(expr promql.Expr, legend string) (names []string) {
	grouped := map[string]bool{}
	promql.Inspect(expr, func(node promql.Node, _ []promql.Node) error {
		switch n := node.(type) {
		case *promql.VectorSelector:
			for _, m := range n.LabelMatchers {
				if m.Name != "__name__" {
					names = append(names, m.Name)
				}
			}
		case *promql.AggregateExpr:
			for _, name := range n.Grouping {
				grouped[name] = true
				names = append(names, name)
			}
		}
		return nil
	})
	for _, m := range legendLabel.FindAllStringSubmatch(legend, -1) {
		if !grouped[m[1]] {
			names = append(names, m[1]+" in the result")
		}
	}
	return names
}

// Each metric of the dashboard is one that the collector exports, with the
// labels that the dashboard selects, groups by and shows.
func TestDashboardShowsWhatThereIs(t *testing.T) {
	d, err := dashboard.Load(dashboardFile)
	require.NoError(t, err)
	require.Empty(t, dashboardProblems(t, d))
	require.Greater(t, len(d.Panels), 15)
	text, err := os.ReadFile(dashboardFile)
	require.NoError(t, err)
	for _, w := range []wrong{
		{old: "rdma_port_hw_out_of_sequence_total", new: "rdma_port_hw_out_of_order_total", found: "the collector has no metric rdma_port_hw_out_of_order_total"},
		{old: "rdma_port_rcv_data_bytes_total", new: "rdma_port_rcv_data_total", found: "the collector has no metric rdma_port_rcv_data_total"},
		{old: "rdma_port_cm_tx_retries_total", new: "rdma_port_cm_retries_total", found: "the collector has no metric rdma_port_cm_retries_total"},
		{old: "rdma_queue_pairs", new: "rdma_qps", found: "the collector has no metric rdma_qps"},
		{old: `device=~\"$device\"`, new: `dev=~\"$device\"`, found: "has no label dev"},
		{old: "by (node, device, message)", new: "by (node, device, kind)", found: "has no label kind"},
		{old: "{{program}}", new: "{{process}}", found: "has no label process in the result"},
		{old: "sum by", new: "sum for", found: "parse error"},
		{old: `"unit"`, new: `"units"`, found: "has no unit"},
		{old: `"targets"`, new: `"target"`, found: "no expression"},
		{old: `"x": 12`, new: `"x": 13`, found: "is beyond the right edge"},
		{old: `"h": 8`, new: `"h": 9`, found: "are in one place"},
	} {
		require.Contains(t, string(text), w.old)
		file := filepath.Join(t.TempDir(), "dashboard.json")
		require.NoError(t, os.WriteFile(file, []byte(strings.ReplaceAll(string(text), w.old, w.new)), 0o600))
		d, err := dashboard.Load(file)
		require.NoError(t, err)
		require.Contains(t, strings.Join(dashboardProblems(t, d), "\n"), w.found)
	}
}
