// SPDX-License-Identifier: Apache-2.0

// Package dashboard reads what a picture of a Grafana dashboard needs: the
// panels and their PromQL expressions.
package dashboard

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/prometheus/promql/parser"
)

// Dashboard is a dashboard of Grafana's.
type Dashboard struct {
	Title  string  `json:"title"`
	Panels []Panel `json:"panels"`
}

// Panel is a panel or, if Type is Row, the title of those below it.
type Panel struct {
	Type, Title string
	GridPos     Place
	Targets     []Target
	FieldConfig struct {
		Defaults struct {
			Unit       string
			Thresholds struct{ Steps []Step }
		}
	}
}

// Step is the colour of values from Value on. The first step has no Value.
type Step struct {
	Color string
	Value *float64
}

// The types of panels.
const (
	Row        = "row"
	Stat       = "stat"       // the last value
	Timeseries = "timeseries" // values over time
)

// Place is where a panel is. The dashboard has 24 columns.
type Place struct{ X, Y, W, H int }

// Overlaps reports whether two places have a cell in common.
func (p Place) Overlaps(q Place) bool {
	return p.X < q.X+q.W && q.X < p.X+p.W && p.Y < q.Y+q.H && q.Y < p.Y+p.H
}

// Target is an expression of a panel.
type Target struct{ Expr, LegendFormat string }

// Load reads the file of a dashboard.
func Load(file string) (*Dashboard, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	d := &Dashboard{}
	if err := json.Unmarshal(text, d); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return d, nil
}

// Parse parses the expression with all nodes and devices selected, and with
// the window that Grafana chooses for rates.
func (t Target) Parse(window time.Duration) (parser.Expr, error) {
	text := strings.NewReplacer("$node", ".*", "$device", ".*", "$__rate_interval", window.String()).Replace(t.Expr)
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.Expr, err)
	}
	return expr, nil
}

// Metrics returns the names of the metrics in an expression, sorted.
func Metrics(expr parser.Expr) (names []string) {
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if s, ok := node.(*parser.VectorSelector); ok {
			names = append(names, s.Name)
		}
		return nil
	})
	slices.Sort(names)
	return slices.Compact(names)
}
