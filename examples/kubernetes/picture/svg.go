// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"encoding/xml"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/verbena-go/verbena/examples/kubernetes/internal/dashboard"
	"github.com/verbena-go/verbena/examples/kubernetes/internal/scrape"
)

// The sizes of the picture, in pixels.
const (
	column, line = 44, 26 // of Grafana's grid
	gap          = 6      // between panels
	header       = 34     // the title of the dashboard
	titleHeight  = 22     // the title of a panel
	axisWidth    = 62     // left of a panel's lines
	legendLine   = 14
	maxLegend    = 4
)

// style has the colours of both modes of a reader's screen.
const style = `<style>
text { font: 12px sans-serif; fill: #24292f } .small { font-size: 10.5px; fill: #57606a } .big { font-size: 34px; font-weight: bold; fill: #fff }
.title { font-weight: bold } .page { fill: #f4f5f5 } .panel { fill: #fff; stroke: #d8dee4 } .grid { stroke: #d8dee4; stroke-width: .6 }
.green { fill: #2e7d32 } .orange { fill: #b35900 } .red { fill: #c62828 } polyline { fill: none; stroke-width: 1.6 }
.c0 { stroke: #1f77b4 } .c1 { stroke: #d9730d } .c2 { stroke: #2a9134 } .c3 { stroke: #c0392b } .c4 { stroke: #7e57c2 } .c5 { stroke: #8d6e63 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .small { fill: #9da7b1 } .page { fill: #111217 } .panel { fill: #181b1f; stroke: #30363d } .grid { stroke: #30363d }
.c0 { stroke: #58a6ff } .c1 { stroke: #f0883e } .c2 { stroke: #56d364 } .c3 { stroke: #ff7b72 } .c4 { stroke: #bc8cff } .c5 { stroke: #d2a679 }
}
</style>
`

// colours is the number of colours in the style.
const colours = 6

// series is a line of a panel. A value is NaN where there is no sample.
type series struct {
	name   string
	values []float64
}

// evaluate returns the lines of a panel, sorted by their names.
func evaluate(p dashboard.Panel, history scrape.History) (all []series, err error) {
	at := map[string]int{}
	for _, target := range p.Targets {
		expr, err := target.Parse(window)
		if err != nil {
			return nil, err
		}
		for i := range history {
			samples, err := history.Eval(expr, i)
			if err != nil {
				return nil, err
			}
			for _, s := range samples {
				name := legend(target.LegendFormat, s)
				n, seen := at[name]
				if !seen {
					n = len(all)
					at[name] = n
					all = append(all, series{name, slices.Repeat([]float64{math.NaN()}, len(history))})
				}
				all[n].values[i] = s.Value
			}
		}
	}
	slices.SortFunc(all, func(a, b series) int { return cmp.Compare(a.name, b.name) })
	return all, nil
}

// legend returns the name of a sample's line.
func legend(format string, s scrape.Sample) string {
	for name, value := range s.Labels.Map() {
		format = strings.ReplaceAll(format, "{{"+name+"}}", value)
	}
	return format
}

// draw returns an SVG with all panels.
func draw(d *dashboard.Dashboard, history scrape.History) ([]byte, error) {
	bottom := 0
	for _, p := range d.Panels {
		bottom = max(bottom, p.GridPos.Y+p.GridPos.H)
	}
	width, height := 24*column+gap, header+bottom*line+gap
	var out bytes.Buffer
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" role="img">`+"\n", width, height)
	fmt.Fprintf(&out, "<title>%s</title>\n<desc>The panels of the dashboard, drawn from samples of the collector, not by Grafana.</desc>\n", escaped(d.Title))
	out.WriteString(style)
	fmt.Fprintf(&out, `<rect class="page" width="%d" height="%d"/>`+"\n", width, height)
	text(&out, gap+4, 23, "title", d.Title+": drawn from the collector's samples, not by Grafana")
	for _, p := range d.Panels {
		x, y := p.GridPos.X*column+gap, header+p.GridPos.Y*line
		if p.Type == dashboard.Row {
			text(&out, x+4, y+18, "title", "▾ "+p.Title)
			continue
		}
		all, err := evaluate(p, history)
		if err != nil {
			return nil, err
		}
		box := box{x, y, p.GridPos.W*column - gap, p.GridPos.H*line - gap}
		fmt.Fprintf(&out, `<rect class="panel" x="%d" y="%d" width="%d" height="%d" rx="2"/>`+"\n", box.x, box.y, box.width, box.height)
		text(&out, x+8, y+16, "title", p.Title)
		switch {
		case len(all) == 0:
			text(&out, x+box.width/2-24, y+box.height/2+8, "small", "No data")
		case p.Type == dashboard.Stat:
			drawStat(&out, box, p, all[0])
		default:
			drawLines(&out, box, p, all, history)
		}
	}
	out.WriteString("</svg>\n")
	return out.Bytes(), nil
}

// box is a rectangle of the picture.
type box struct{ x, y, width, height int }

func escaped(s string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(s)) // a buffer takes everything
	return b.String()
}

func text(out *bytes.Buffer, x, y int, class, s string) {
	fmt.Fprintf(out, `<text class="%s" x="%d" y="%d">%s</text>`+"\n", class, x, y, escaped(s))
}

// drawStat draws the last value, on the colour of the highest step that it
// reaches.
func drawStat(out *bytes.Buffer, b box, p dashboard.Panel, s series) {
	value, colour := s.values[len(s.values)-1], ""
	for _, step := range p.FieldConfig.Defaults.Thresholds.Steps {
		if step.Value == nil || value >= *step.Value {
			colour = step.Color
		}
	}
	fmt.Fprintf(out, `<rect class="%s" x="%d" y="%d" width="%d" height="%d" rx="2"/>`+"\n", colour, b.x+1, b.y+titleHeight, b.width-2, b.height-titleHeight-1)
	fmt.Fprintf(out, `<text class="big" text-anchor="middle" x="%d" y="%d">%s</text>`+"\n", b.x+b.width/2, b.y+titleHeight+(b.height-titleHeight)/2+12, number(value))
}

// drawLines draws lines over time, with a grid of four lines, and a legend.
func drawLines(out *bytes.Buffer, b box, p dashboard.Panel, all []series, history scrape.History) {
	shown := min(len(all), maxLegend)
	left, right := b.x+axisWidth, b.x+b.width-12
	top, low := b.y+titleHeight+6, b.y+b.height-shown*legendLine-22
	greatest := 0.0
	for _, s := range all {
		for _, v := range s.values {
			if v > greatest { // false for NaN
				greatest = v
			}
		}
	}
	greatest = rounded(greatest)
	for i := range 5 {
		y := low - i*(low-top)/4
		fmt.Fprintf(out, `<path class="grid" d="M%d %dH%d"/>`+"\n", left, y, right)
		fmt.Fprintf(out, `<text class="small" text-anchor="end" x="%d" y="%d">%s</text>`+"\n", left-5, y+4, number(greatest*float64(i)/4)+unit(p.FieldConfig.Defaults.Unit))
	}
	first, last := history[0].At, history[len(history)-1].At
	text(out, left, low+13, "small", "0 s")
	fmt.Fprintf(out, `<text class="small" text-anchor="end" x="%d" y="%d">%d s</text>`+"\n", right, low+13, int(last.Sub(first).Round(time.Second).Seconds()))
	for n, s := range all {
		var points strings.Builder
		for i, v := range s.values {
			if math.IsNaN(v) {
				continue
			}
			x := float64(left) + float64(right-left)*float64(history[i].At.Sub(first))/float64(max(last.Sub(first), 1))
			fmt.Fprintf(&points, "%.1f,%.1f ", x, float64(low)-v/greatest*float64(low-top))
		}
		fmt.Fprintf(out, `<polyline class="c%d" points="%s"/>`+"\n", n%colours, strings.TrimSpace(points.String()))
		y := low + 28 + n*legendLine
		switch {
		case n < shown-1 || n < shown && len(all) == shown:
			fmt.Fprintf(out, `<path class="c%d" stroke-width="2.5" d="M%d %dh14"/>`+"\n", n%colours, b.x+8, y-4)
			text(out, b.x+28, y, "small", s.name)
		case n == shown-1:
			text(out, b.x+28, y, "small", fmt.Sprintf("and %d more", len(all)-n))
		}
	}
}

// rounded returns the least of 1, 2, 4 and 8 times a power of ten that is no
// less than a value.
func rounded(value float64) float64 {
	if value <= 0 {
		return 1
	}
	power := math.Pow10(int(math.Floor(math.Log10(value))))
	for _, n := range []float64{1, 2, 4, 8} {
		if value <= n*power {
			return n * power
		}
	}
	return 10 * power
}

// number returns a value with few digits.
func number(value float64) string {
	for _, scale := range []struct {
		of     float64
		suffix string
	}{{1e9, " G"}, {1e6, " M"}, {1e3, " K"}} {
		if value >= scale.of {
			return fmt.Sprintf("%.3g%s", value/scale.of, scale.suffix)
		}
	}
	return fmt.Sprintf("%.3g", value)
}

// unit returns what follows the numbers of one of Grafana's units.
func unit(name string) string {
	return map[string]string{"Bps": "B/s", "pps": " p/s", "cps": " /s", "bytes": "B"}[name]
}
