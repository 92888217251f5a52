// SPDX-License-Identifier: Apache-2.0

package plot

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"unicode/utf8"

	"github.com/verbena-go/verbena/cmd/verbena/internal/perf/mesh"
)

// DrawHeat draws the links of a mesh into an SVG file: a map of each metric for
// each rail, from the hosts of the rows to those of the columns. A cell is the
// redder the worse its value is than the rail's median, and the bluer the
// better. Slow links have a frame. Below are the findings. If DrawHeat fails,
// it writes nothing.
func DrawHeat(file string, r *mesh.Result) error {
	if err := CheckFile(file); err != nil {
		return err
	}
	if len(r.Baselines) == 0 {
		return errors.New("nothing to draw")
	}
	return os.WriteFile(file, newHeat(r).render(), 0o666)
}

// heat is a drawing of a mesh.
type heat struct {
	*mesh.Result
	links        map[[3]string]*mesh.Link // by rail, From and To
	names        int                      // width of the hosts' names, in pixels
	cellW, cellH int                      // size of a cell, in pixels
}

// The sizes of a heat map, in pixels.
const (
	heatMargin  = 20
	heatTitle   = 60 // of a map, with the numbers of its columns
	heatGap     = 40
	heatLetter  = 8 // width of a letter of a name
	heatLegend  = 60
	heatLine    = 18 // height of a line of text
	mostNumbers = 20 // hosts with which cells are so large that they have numbers
)

func newHeat(r *mesh.Result) *heat {
	h := &heat{Result: r, links: map[[3]string]*mesh.Link{}, cellW: 36, cellH: 22}
	if len(r.Hosts) > mostNumbers {
		h.cellW, h.cellH = 12, 12
	}
	for i := range r.Links {
		l := &r.Links[i]
		h.links[[3]string{l.Rail, l.From, l.To}] = l
	}
	for i, host := range r.Hosts {
		h.names = max(h.names, heatLetter*utf8.RuneCountInString(label(i, host)))
	}
	return h
}

func label(i int, host mesh.Host) string { return fmt.Sprintf("%d %s", i+1, host.Name) }

// render returns the SVG.
func (h *heat) render() []byte {
	var body bytes.Buffer
	mapW, mapH := h.cellW*len(h.Hosts), h.cellH*len(h.Hosts)
	y := heatMargin
	for _, rail := range h.Rails {
		x := heatMargin + h.names
		drawn := false
		for _, m := range mesh.Metrics {
			if b, ok := h.Baseline(rail, m); ok {
				fmt.Fprintf(&body, "<g transform=\"translate(%d %d)\">\n", x, y+heatTitle)
				h.draw(&body, m, b)
				body.WriteString("</g>\n")
				drawn = true
			}
			x += mapW + heatGap
		}
		if drawn {
			for i, host := range h.Hosts {
				text(&body, float64(heatMargin+h.names-8), float64(y+heatTitle+i*h.cellH)+float64(h.cellH)/2+4, `text-anchor="end"`, label(i, host))
			}
			y += heatTitle + mapH + heatGap
		}
	}
	h.legend(&body, y)
	y += heatLegend
	longest := 0
	for _, f := range h.Findings {
		text(&body, heatMargin, float64(y), "", f.Text)
		longest = max(longest, utf8.RuneCountInString(f.Text))
		y += heatLine
	}
	width := max(heatMargin+h.names+len(mesh.Metrics)*(mapW+heatGap), 2*heatMargin+heatLetter*longest, legendWidth)
	var svg bytes.Buffer
	fmt.Fprintf(&svg, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="sans-serif" font-size="13">`+"\n", width, y+heatMargin)
	svg.WriteString(`<rect width="100%" height="100%" fill="white"/>` + "\n")
	svg.Write(body.Bytes())
	svg.WriteString("</svg>\n")
	return svg.Bytes()
}

// draw draws the map of a metric.
func (h *heat) draw(w *bytes.Buffer, m *mesh.Metric, b mesh.Baseline) {
	n := len(h.Hosts)
	text(w, 0, -36, `font-size="14"`, fmt.Sprintf("%s on %s", m.Title, b.Rail))
	text(w, 0, -20, `font-size="11"`, fmt.Sprintf("%s, median %.3g, MAD %g %%", m.Unit, b.Median, b.MAD))
	for i := range n {
		if n <= mostNumbers || (i+1)%5 == 0 {
			text(w, (float64(i)+0.5)*float64(h.cellW), -5, `text-anchor="middle" font-size="10"`, fmt.Sprint(i+1))
		}
	}
	var frames bytes.Buffer // above all cells
	for i, from := range h.Hosts {
		for j, to := range h.Hosts {
			l := h.links[[3]string{b.Rail, from.Name, to.Name}]
			if l == nil {
				continue
			}
			x, y := j*h.cellW, i*h.cellH
			value, ok := m.Of(l)
			fill, words := failedColour, "failed"
			if ok {
				factor := m.Worse(value, b.Median)
				fill, words = heatColour(factor), fmt.Sprintf("%.3g %s, %.2f times the median", value, m.Unit, value/b.Median)
				if m.IsSlow(value, b) {
					fmt.Fprintf(&frames, `<rect x="%d" y="%d" width="%d" height="%d" fill="none" stroke="black" stroke-width="2"/>`+"\n", x, y, h.cellW, h.cellH)
				}
			}
			fmt.Fprintf(w, `<rect x="%d" y="%d" width="%d" height="%d" fill="%s"><title>`, x, y, h.cellW, h.cellH, fill)
			escape(w, fmt.Sprintf("%s to %s: %s", l.From, l.To, words))
			w.WriteString("</title></rect>\n")
			if n <= mostNumbers {
				h.number(w, x, y, m, l, b)
			}
		}
	}
	w.Write(frames.Bytes())
	fmt.Fprintf(w, `<rect width="%d" height="%d" fill="none" stroke="#888"/>`+"\n", n*h.cellW, n*h.cellH)
}

// number writes the value of a link into its cell.
func (h *heat) number(w *bytes.Buffer, x, y int, m *mesh.Metric, l *mesh.Link, b mesh.Baseline) {
	words, colour := "x", "black"
	if value, ok := m.Of(l); ok {
		words = mesh.Number(value)
		if math.Abs(math.Log2(m.Worse(value, b.Median))) > 1.5 {
			colour = "white"
		}
	}
	text(w, float64(x)+float64(h.cellW)/2, float64(y)+float64(h.cellH)/2+4, fmt.Sprintf(`text-anchor="middle" font-size="10" fill="%s" pointer-events="none"`, colour), words)
}

// failedColour is the color of a link that could not be measured.
const failedColour = "#999999"

// darkest is the factor at which colors are darkest.
const darkest = 8

// heatColour returns the color of a value that is worse than the median by a
// factor: from blue over white to red. These can be told apart with every kind
// of color vision.
func heatColour(factor float64) string {
	share := max(-1, min(1, math.Log(factor)/math.Log(darkest)))
	end := [3]float64{178, 24, 43}
	if share < 0 {
		share, end = -share, [3]float64{33, 102, 172}
	}
	var colour [3]int
	for i := range colour {
		colour[i] = int(math.Round(255 + (end[i]-255)*share))
	}
	return fmt.Sprintf("#%02x%02x%02x", colour[0], colour[1], colour[2])
}

// The size of the legend, in pixels.
const (
	legendStep  = 60
	legendWidth = 2*heatMargin + 12*legendStep
)

// legend draws the meaning of the colors.
func (h *heat) legend(w *bytes.Buffer, y int) {
	for i := -3; i <= 3; i++ {
		x, factor := heatMargin+(i+3)*legendStep, math.Ldexp(1, i)
		fmt.Fprintf(w, `<rect x="%d" y="%d" width="%d" height="14" fill="%s"/>`+"\n", x, y, legendStep, heatColour(factor))
		words := "median"
		if i != 0 {
			words = fmt.Sprintf("%g x", math.Max(factor, 1/factor))
		}
		text(w, float64(x)+legendStep/2, float64(y)+28, `text-anchor="middle" font-size="11"`, words)
	}
	text(w, heatMargin, float64(y)-5, `font-size="11"`, "better")
	text(w, heatMargin+7*legendStep, float64(y)-5, `text-anchor="end" font-size="11"`, "worse")
	fmt.Fprintf(w, `<rect x="%d" y="%d" width="%d" height="14" fill="%s"/>`+"\n", heatMargin+8*legendStep, y, legendStep, failedColour)
	text(w, heatMargin+8.5*legendStep, float64(y)+28, `text-anchor="middle" font-size="11"`, "failed")
	text(w, heatMargin+9.5*legendStep, float64(y)+11, `font-size="11"`, "rows send to columns")
}
