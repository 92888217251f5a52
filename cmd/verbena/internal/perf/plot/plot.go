// SPDX-License-Identifier: Apache-2.0

// Package plot draws the results of package measure.
package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/verbena-go/verbena/cmd/verbena/internal/perf/measure"
)

// Series is a result to draw as a line.
type Series struct {
	Name string
	measure.Result
}

// CheckFile returns an error unless the file's name says that it is an SVG
// file.
func CheckFile(file string) error {
	if strings.EqualFold(filepath.Ext(file), ".svg") {
		return nil
	}
	return fmt.Errorf("%s: a plot is an SVG file: use a name that ends in .svg", file)
}

// Draw draws latency and bandwidth against the size into an SVG file, in a
// panel each. A panel without values is omitted. If Draw fails, it writes
// nothing.
func Draw(file string, series []Series) error {
	if err := CheckFile(file); err != nil {
		return err
	}
	svg, err := render(series)
	if err != nil {
		return err
	}
	return os.WriteFile(file, svg, 0o666)
}

// render returns the SVG.
func render(series []Series) ([]byte, error) {
	latency := panel{title: "Latency (typical, and dashed 99 %)", unit: "microseconds"}
	bandwidth := panel{title: "Bandwidth (average)", unit: "MiB/s"}
	for _, s := range series {
		p := &latency
		if s.Bandwidth {
			p = &bandwidth
		}
		if err := p.add(s); err != nil {
			return nil, fmt.Errorf("%s: %w", s.Name, err)
		}
	}
	var body bytes.Buffer
	height := 0
	for _, p := range []panel{latency, bandwidth} {
		if len(p.lines) > 0 {
			fmt.Fprintf(&body, "<g transform=\"translate(0 %d)\">\n", height)
			p.draw(&body)
			body.WriteString("</g>\n")
			height += panelHeight
		}
	}
	if height == 0 {
		return nil, errors.New("nothing to draw")
	}
	var svg bytes.Buffer
	fmt.Fprintf(&svg, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="sans-serif" font-size="13">`+"\n", width, height)
	svg.WriteString(`<rect width="100%" height="100%" fill="white"/>` + "\n")
	svg.Write(body.Bytes())
	svg.WriteString("</svg>\n")
	return svg.Bytes(), nil
}

// panel holds the lines that have common axes.
type panel struct {
	title, unit string
	lines       []line
}

// line is a series in a panel.
type line struct {
	name         string
	points, tail []point // medians, and 99th percentiles of latencies
}

// point is a size in bytes and the measured value. Both axes are logarithmic.
type point struct{ bytes, value float64 }

func (p *panel) add(s Series) error {
	if len(s.Rows) == 0 {
		return errors.New("the run has no rows")
	}
	l := line{name: s.Name}
	for _, r := range s.Rows {
		value := r.Typical
		if s.Bandwidth {
			value = r.Average
		}
		if r.Bytes <= 0 || value <= 0 || !s.Bandwidth && r.P99 <= 0 {
			return fmt.Errorf("the row for %d bytes has no value that a logarithmic scale can show", r.Bytes)
		}
		l.points = append(l.points, point{float64(r.Bytes), value})
		if !s.Bandwidth {
			l.tail = append(l.tail, point{float64(r.Bytes), r.P99})
		}
	}
	p.lines = append(p.lines, l)
	return nil
}

// The size of a panel and the place of its axes, in pixels.
const (
	width, panelHeight       = 800, 470
	left, right, top, bottom = 80, width - 25, 45, panelHeight - 60
)

func (p *panel) draw(w *bytes.Buffer) {
	x, y := p.axes()
	text(w, (left+right)/2, top-20, `text-anchor="middle" font-size="16"`, p.title)
	for _, t := range x.ticks {
		fmt.Fprintf(w, `<path d="M%.1f %dV%d" stroke="#ddd"/>`+"\n", x.at(t.value), bottom, top)
		text(w, x.at(t.value), bottom+20, `text-anchor="middle"`, t.label)
	}
	for _, t := range y.ticks {
		fmt.Fprintf(w, `<path d="M%d %.1fH%d" stroke="#ddd"/>`+"\n", left, y.at(t.value), right)
		text(w, left-8, y.at(t.value)+4, `text-anchor="end"`, t.label)
	}
	fmt.Fprintf(w, `<rect x="%d" y="%d" width="%d" height="%d" fill="none" stroke="black"/>`+"\n", left, top, right-left, bottom-top)
	text(w, (left+right)/2, bottom+45, `text-anchor="middle"`, "bytes")
	text(w, 0, 0, fmt.Sprintf(`text-anchor="middle" transform="translate(20 %d) rotate(-90)"`, (top+bottom)/2), p.unit)

	for i, l := range p.lines {
		colour := colours[i%len(colours)]
		polyline(w, x, y, l.points, fmt.Sprintf(`stroke="%s" stroke-width="2"`, colour))
		if len(l.tail) > 0 {
			polyline(w, x, y, l.tail, fmt.Sprintf(`stroke="%s" stroke-dasharray="5 4"`, colour))
		}
		for _, point := range l.points {
			fmt.Fprintf(w, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", x.at(point.bytes), y.at(point.value), colour)
		}
	}
	p.legend(w)
}

// axes returns axes whose ranges include all points.
func (p *panel) axes() (x, y axis) {
	var sizes, values []float64
	for _, l := range p.lines {
		for _, point := range slices.Concat(l.points, l.tail) {
			sizes, values = append(sizes, point.bytes), append(values, point.value)
		}
	}
	return axis{powersOfTwo(slices.Min(sizes), slices.Max(sizes)), left, right},
		axis{oneTwoFive(slices.Min(values), slices.Max(values)), bottom, top}
}

// legend writes the names of the lines into the upper left corner, where there
// is room because latencies and bandwidths grow with the size.
func (p *panel) legend(w *bytes.Buffer) {
	for i, l := range p.lines {
		y, colour := top+20+20*i, colours[i%len(colours)]
		fmt.Fprintf(w, `<path d="M%d %dh30" stroke="%s" stroke-width="2"/>`+"\n", left+12, y, colour)
		fmt.Fprintf(w, `<circle cx="%d" cy="%d" r="3" fill="%s"/>`+"\n", left+27, y, colour)
		text(w, left+50, float64(y)+4, "", l.name)
	}
}

// colours holds colors that can be told apart with every kind of color vision.
var colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000"}

func polyline(w *bytes.Buffer, x, y axis, points []point, style string) {
	w.WriteString(`<polyline fill="none" ` + style + ` points="`)
	for i, p := range points {
		if i > 0 {
			w.WriteByte(' ')
		}
		fmt.Fprintf(w, "%.1f,%.1f", x.at(p.bytes), y.at(p.value))
	}
	w.WriteString(`"/>` + "\n")
}

// text writes a text, unless it is empty. The style says whether its start,
// middle or end is at x.
func text(w *bytes.Buffer, x, y float64, style, s string) {
	if s == "" {
		return
	}
	fmt.Fprintf(w, `<text x="%.1f" y="%.1f" %s>`, x, y, style)
	escape(w, s)
	w.WriteString("</text>\n")
}

// escape writes a text that is not part of the markup.
func escape(w *bytes.Buffer, s string) { _ = xml.EscapeText(w, []byte(s)) } // a buffer takes everything
