// SPDX-License-Identifier: Apache-2.0

package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/verbena/internal/perf/measure"
	"github.com/verbena-go/verbena/internal/testutil/golden"
)

func series(name string, bandwidth bool, factor float64) Series {
	s := Series{Name: name, Result: measure.Result{Bandwidth: bandwidth}}
	for size := 2; size <= 8<<20; size *= 2 {
		r := measure.Row{Bytes: size, Typical: factor * (20 + float64(size)/500), P99: factor * (40 + float64(size)/400)}
		if bandwidth {
			r = measure.Row{Bytes: size, Average: factor * float64(size) / (20 + float64(size)/500)}
		}
		s.Rows = append(s.Rows, r)
	}
	return s
}

// texts returns what an SVG has as text, and fails if it is no XML.
func texts(t *testing.T, svg []byte) (all []string) {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(svg))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		if c, ok := token.(xml.CharData); ok {
			all = append(all, string(c))
		}
	}
}

// The golden file is worth a look in a browser when it changes.
func TestDraw(t *testing.T) {
	file := filepath.Join(t.TempDir(), "plot.svg")
	require.NoError(t, Draw(file, []Series{
		series("Go send", false, 1.05), series("C <send> & \"co\"", false, 1), series("Go write", true, 0.97), series("C write", true, 1),
	}))
	svg, err := os.ReadFile(file)
	require.NoError(t, err)
	all := texts(t, svg)
	for _, text := range []string{
		"Go send", "C <send> & \"co\"", "Go write", "C write", "bytes", "microseconds", "MiB/s", "64 Ki", "1 Mi", "4", "10000",
	} {
		require.Contains(t, all, text)
	}
	golden.Compare(t, filepath.Join("testdata", "plot.svg"), string(svg))
}

// All that is drawn is inside of the picture, however much or little there is.
func TestDrawInside(t *testing.T) {
	row := func(bytes int, typical, p99 float64) measure.Row {
		return measure.Row{Bytes: bytes, Typical: typical, P99: p99}
	}
	for name, rows := range map[string][]measure.Row{
		"one row":       {row(1, 1, 1)},
		"odd size":      {row(3, 7.3, 9)},
		"small change":  {row(64, 3.3, 3.31), row(128, 3.31, 3.32)},
		"wide":          {row(1, 1e-7, 1e9), row(1<<30, 1e9, 1e12)},
		"falling":       {row(8, 100, 200), row(2, 300, 400)},
		"power of ten":  {row(1024, 10, 10), row(4096, 1000, 1000)},
		"below a tenth": {row(2, 0.05, 0.2)},
	} {
		t.Run(name, func(t *testing.T) {
			svg, err := render([]Series{{Name: "x", Result: measure.Result{Rows: rows}}})
			require.NoError(t, err)
			texts(t, svg)
			points := regexp.MustCompile(`cx="([^"]*)" cy="([^"]*)"|[ "]([-+.\w]+),([-+.\w]+)`).FindAllStringSubmatch(string(svg), -1)
			require.Len(t, points, 3*len(rows)+1, "two lines, one with circles, and the legend's")
			for _, p := range points {
				x, err := strconv.ParseFloat(p[1]+p[3], 64)
				require.NoError(t, err)
				y, err := strconv.ParseFloat(p[2]+p[4], 64)
				require.NoError(t, err)
				require.True(t, left <= x && x <= right && top <= y && y <= bottom, "%v, %v", x, y)
			}
		})
	}
}

func labels(ticks []tick) (all []string) {
	for _, t := range ticks {
		all = append(all, t.label)
	}
	return all
}

func TestTicks(t *testing.T) {
	require.Equal(t, []string{"1", "2"}, labels(powersOfTwo(1, 1)))
	require.Equal(t, []string{"32", "64", "128"}, labels(powersOfTwo(64, 64)))
	require.Equal(t, []string{"512", "1 Ki", "2 Ki"}, labels(powersOfTwo(600, 2000)))
	require.Equal(t, []string{"1", "", "4", "", "16", "", "64", "", "256", "", "1 Ki", "", "4 Ki", "", "16 Ki", "", "64 Ki", "", "256 Ki", "", "1 Mi"},
		labels(powersOfTwo(1, 1<<20)))
	require.Equal(t, []string{"5", "10", "20"}, labels(oneTwoFive(10, 10)))
	require.Equal(t, []string{"2", "5"}, labels(oneTwoFive(3, 4)))
	require.Equal(t, []string{"0.5", "1", "2", "5", "10", "20"}, labels(oneTwoFive(0.7, 12)))
	require.Equal(t, []string{"1", "", "", "10", "", "", "100", "", "", "1000", "", "", "10000"}, labels(oneTwoFive(1, 1e4)))
	for _, v := range []float64{1e-9, 0.1, 0.3, 1, 7, 1000, 999999, 1e15} {
		ticks := oneTwoFive(v, v)
		require.LessOrEqual(t, ticks[0].value, v)
		require.GreaterOrEqual(t, ticks[len(ticks)-1].value, v)
	}
}

func TestDrawFails(t *testing.T) {
	dir := t.TempDir()
	good := []Series{series("good", false, 1)}
	for text, bad := range map[string][]Series{
		"nothing to draw":                        nil,
		"zero: the row for 2 bytes has no value": {good[0], series("zero", true, 0)},
		"no tail: the row for 2 bytes has":       {{Name: "no tail", Result: measure.Result{Rows: []measure.Row{{Bytes: 2, Typical: 1}}}}},
		"no size: the row for 0 bytes has":       {{Name: "no size", Result: measure.Result{Rows: []measure.Row{{Typical: 1, P99: 1}}}}},
		"empty: the run has no rows":             {{Name: "empty"}},
	} {
		file := filepath.Join(dir, "none.svg")
		require.ErrorContains(t, Draw(file, bad), text)
		require.NoFileExists(t, file)
	}
	require.ErrorIs(t, Draw(filepath.Join(dir, "none", "plot.svg"), good), os.ErrNotExist)
	for _, name := range []string{"plot.png", "plot", "svg"} {
		require.ErrorContains(t, Draw(filepath.Join(dir, name), good), name+": a plot is an SVG file: use a name that ends in .svg")
	}
	require.NoError(t, Draw(filepath.Join(dir, "PLOT.SVG"), good))
}
