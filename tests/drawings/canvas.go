// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"strings"
)

// style has the colors of a drawing, which follow the reader's light or dark
// mode. The background is of the drawing, so that it suits any page.
const style = `
text { font: 14px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #1f2328 }
.head { font-weight: bold }
.small { font-size: 12px }
.light { fill: #59636e }
.page { fill: #ffffff; stroke: #d1d9e0 }
.plain { fill: #f6f8fa; stroke: #818b98 }
.go { fill: #ddf4ff; stroke: #0969da }
.made { fill: #dafbe1; stroke: #1a7f37 }
.device { fill: #fff1e5; stroke: #bc4c00 }
.group { fill: none; stroke: #818b98; stroke-dasharray: 5 4 }
.line { fill: none; stroke: #59636e; stroke-width: 1.5 }
.rule { fill: none; stroke: #818b98; stroke-dasharray: 2 3 }
.tip { fill: #59636e }
.dot { fill: #59636e }
.number { font-size: 12px; font-weight: bold; fill: #ffffff }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc }
.light { fill: #a9b4c0 }
.page { fill: #0d1117; stroke: #3d444d }
.plain { fill: #1c2128; stroke: #7d8590 }
.go { fill: #10294d; stroke: #4493f8 }
.made { fill: #12341d; stroke: #3fb950 }
.device { fill: #40230b; stroke: #db6d28 }
.group, .rule { stroke: #7d8590 }
.line { stroke: #a9b4c0 }
.tip, .dot { fill: #a9b4c0 }
.number { fill: #0d1117 }
}
`

// A canvas collects the shapes of a drawing. Coordinates are pixels from the
// top left corner.
type canvas struct {
	shapes  bytes.Buffer
	misfits []string // texts that are wider than the boxes around them
}

// A rect is the place of a box.
type rect struct{ x, y, w, h int }

func (r rect) middle() int { return r.x + r.w/2 }

const lineHeight = 18

// box draws a box of a class with lines of text in its middle, of which the
// first is a heading.
func (c *canvas) box(class string, r rect, lines ...string) {
	fmt.Fprintf(&c.shapes, `<rect class="%s" x="%d" y="%d" width="%d" height="%d" rx="6"/>`+"\n", class, r.x, r.y, r.w, r.h)
	y := r.y + r.h/2 - (len(lines)-1)*lineHeight/2 + 5
	for i, line := range lines {
		kind := "small"
		if i == 0 {
			kind = "head"
		}
		if width(kind, line) > r.w-8 || len(lines)*lineHeight > r.h {
			c.misfits = append(c.misfits, line)
		}
		c.text(kind, "middle", r.middle(), y+i*lineHeight, line)
	}
}

// label draws a box of a class with a line of text that is no heading.
func (c *canvas) label(class string, r rect, line string) {
	c.box(class, r)
	if width("small", line) > r.w-4 {
		c.misfits = append(c.misfits, line)
	}
	c.text("small", "middle", r.middle(), r.y+r.h/2+4, line)
}

// text draws a line of text. The anchor, "start", "middle" or "end", says which
// part of it is at x. y is the base line.
func (c *canvas) text(class, anchor string, x, y int, line string) {
	fmt.Fprintf(&c.shapes, `<text class="%s" text-anchor="%s" x="%d" y="%d">%s</text>`+"\n", class, anchor, x, y, escape(line))
}

// width returns how wide a text is in the widest of the usual fonts.
func width(class, line string) int {
	size := 14.0
	if strings.Contains(class, "small") {
		size = 12
	}
	em := 0.58
	if strings.Contains(class, "head") {
		em = 0.64
	}
	return int(float64(len([]rune(line))) * size * em)
}

// arrow draws a line through points, each of x and y, with a tip at its end.
func (c *canvas) arrow(points ...[2]int) {
	c.line(points...)
	last, before := points[len(points)-1], points[len(points)-2]
	x, y := last[0], last[1]
	var tip string
	switch {
	case before[0] < x:
		tip = fmt.Sprintf("M%d %dl-9 -5v10z", x, y)
	case before[0] > x:
		tip = fmt.Sprintf("M%d %dl9 -5v10z", x, y)
	case before[1] < y:
		tip = fmt.Sprintf("M%d %dl-5 -9h10z", x, y)
	default:
		tip = fmt.Sprintf("M%d %dl-5 9h10z", x, y)
	}
	fmt.Fprintf(&c.shapes, `<path class="tip" d="%s"/>`+"\n", tip)
}

// line draws a line through points.
func (c *canvas) line(points ...[2]int) {
	c.path("line", points...)
}

func (c *canvas) path(class string, points ...[2]int) {
	var d strings.Builder
	for i, p := range points {
		command := "L"
		if i == 0 {
			command = "M"
		}
		fmt.Fprintf(&d, "%s%d %d", command, p[0], p[1])
	}
	fmt.Fprintf(&c.shapes, `<path class="%s" d="%s"/>`+"\n", class, d.String())
}

// number draws the number of a step in a dot.
func (c *canvas) number(n, x, y int) {
	fmt.Fprintf(&c.shapes, `<circle class="dot" cx="%d" cy="%d" r="10"/>`+"\n", x, y)
	c.text("number", "middle", x, y+4, fmt.Sprint(n))
}

// A drawing is one picture.
type drawing struct {
	name          string // of its file, without the ending
	title         string
	description   string // for readers that do not see it
	width, height int
	draw          func(c *canvas)
}

// svg returns the drawing's file, and the texts that do not fit into it.
func (d drawing) svg() (file []byte, misfits []string) {
	var c canvas
	d.draw(&c)
	var out bytes.Buffer
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" role="img" aria-labelledby="title description">`+"\n",
		d.width, d.height)
	out.WriteString("<!-- Made by tests/drawings: go generate ./tests/drawings -->\n")
	fmt.Fprintf(&out, "<title id=\"title\">%s</title>\n<desc id=\"description\">%s</desc>\n", escape(d.title), escape(d.description))
	fmt.Fprintf(&out, "<style>%s</style>\n", style)
	fmt.Fprintf(&out, `<rect class="page" x="0.5" y="0.5" width="%d" height="%d" rx="8"/>`+"\n", d.width-1, d.height-1)
	out.Write(c.shapes.Bytes())
	out.WriteString("</svg>\n")
	return out.Bytes(), c.misfits
}

func escape(text string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(text)) // a Buffer has no errors
	return b.String()
}
