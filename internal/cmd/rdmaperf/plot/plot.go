// Package plot draws what package perf has measured.
package plot

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/verbena-go/verbena/internal/cmd/rdmaperf/perf"
)

// Series is a run, to be drawn as a line.
type Series struct {
	Name string
	perf.Result
}

// The size of a panel.
const width, height = 20 * vg.Centimeter, 12 * vg.Centimeter

// Draw draws latency and bandwidth against the size into an SVG file, each in a
// panel of its own if there is any.
func Draw(file string, series []Series) (err error) {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return write(f, series)
}

func write(w io.Writer, series []Series) error {
	var panels [][]*plot.Plot
	for _, bandwidth := range []bool{false, true} {
		var of []Series
		for _, s := range series {
			if s.Bandwidth == bandwidth {
				of = append(of, s)
			}
		}
		if len(of) > 0 {
			p, err := panel(of, bandwidth)
			if err != nil {
				return err
			}
			panels = append(panels, []*plot.Plot{p})
		}
	}
	if len(panels) == 0 {
		return errors.New("nothing to draw")
	}
	canvas := vgsvg.New(width, height*vg.Length(len(panels)))
	tiles := draw.Tiles{Rows: len(panels), Cols: 1, PadY: vg.Centimeter, PadTop: vg.Millimeter, PadBottom: vg.Millimeter, PadLeft: vg.Millimeter, PadRight: 5 * vg.Millimeter}
	for i, c := range plot.Align(panels, tiles, draw.New(canvas)) {
		panels[i][0].Draw(c[0])
	}
	_, err := canvas.WriteTo(w)
	return err
}

func panel(series []Series, bandwidth bool) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text, p.Y.Label.Text = "Latency (typical, and dashed 99 %)", "microseconds"
	if bandwidth {
		p.Title.Text, p.Y.Label.Text = "Bandwidth (average)", "MiB/s"
	}
	p.X.Label.Text = "bytes"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.TickerFunc(powersOfTwo), plot.TickerFunc(powersOfTen)
	p.Add(plotter.NewGrid())
	p.Legend.Top, p.Legend.Left = true, true
	for i, s := range series {
		if err := add(p, s, i); err != nil {
			return nil, fmt.Errorf("%s: %w", s.Name, err)
		}
	}
	return p, nil
}

// add draws a line with points, and for latency one for the 99th percentile.
func add(p *plot.Plot, s Series, i int) error {
	typical, p99 := make(plotter.XYs, len(s.Rows)), make(plotter.XYs, len(s.Rows))
	for k, r := range s.Rows {
		typical[k] = plotter.XY{X: float64(r.Bytes), Y: r.Typical}
		p99[k] = plotter.XY{X: float64(r.Bytes), Y: r.P99}
		if s.Bandwidth {
			typical[k].Y = r.Average
		}
		if typical[k].Y <= 0 {
			return fmt.Errorf("the row for %d bytes has no value that a logarithmic scale can show", r.Bytes)
		}
	}
	line, points, err := plotter.NewLinePoints(typical)
	if err != nil {
		return err
	}
	line.Color, points.Color, points.Shape = plotutil.Color(i), plotutil.Color(i), plotutil.Shape(i)
	p.Add(line, points)
	p.Legend.Add(s.Name, line, points)
	if s.Bandwidth {
		return nil
	}
	dashed, err := plotter.NewLine(p99)
	if err != nil {
		return err
	}
	dashed.Color, dashed.Dashes = plotutil.Color(i), plotutil.Dashes(1)
	p.Add(dashed)
	return nil
}

// powersOfTwo labels each fourth power of two, of 2 to 2^30 bytes.
func powersOfTwo(low, high float64) []plot.Tick {
	var ticks []plot.Tick
	for e := math.Floor(math.Log2(low)); e <= math.Ceil(math.Log2(high)); e++ {
		t := plot.Tick{Value: math.Exp2(e)}
		if int(e)%2 == 0 {
			t.Label = human(int(t.Value))
		}
		ticks = append(ticks, t)
	}
	return ticks
}

// powersOfTen leaves room behind the labels, as the font that they are shown with
// may be wider than the one that they were placed with.
func powersOfTen(low, high float64) []plot.Tick {
	ticks := plot.LogTicks{Prec: -1}.Ticks(low, high)
	for i := range ticks {
		if ticks[i].IsMinor() {
			continue
		}
		ticks[i].Label += "\u00a0\u00a0"
	}
	return ticks
}

func human(n int) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%d Mi", n>>20)
	case n >= 1<<10:
		return fmt.Sprintf("%d Ki", n>>10)
	}
	return fmt.Sprint(n)
}
