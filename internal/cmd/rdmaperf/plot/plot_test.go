package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/cmd/rdmaperf/perf"
)

func series(name string, bandwidth bool, factor float64) Series {
	s := Series{Name: name, Result: perf.Result{Bandwidth: bandwidth}}
	for size := 2; size <= 8<<20; size *= 2 {
		r := perf.Row{Bytes: size, Typical: factor * (20 + float64(size)/500), P99: factor * (40 + float64(size)/400)}
		if bandwidth {
			r = perf.Row{Bytes: size, Average: factor * float64(size) / (20 + float64(size)/500)}
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

func TestDraw(t *testing.T) {
	file := filepath.Join(t.TempDir(), "plot.svg")
	require.NoError(t, Draw(file, []Series{
		series("Go send", false, 1.05), series("C send", false, 1), series("Go write", true, 0.97), series("C write", true, 1),
	}))
	svg, err := os.ReadFile(file)
	require.NoError(t, err)
	all := texts(t, svg)
	for _, text := range []string{"Go send", "C send", "Go write", "C write", "bytes", "microseconds", "MiB/s", "64 Ki", "1 Mi", "4"} {
		require.Contains(t, all, text)
	}
}

func TestDrawFails(t *testing.T) {
	require.ErrorContains(t, write(io.Discard, nil), "nothing to draw")
	s := series("zero", false, 0)
	require.ErrorContains(t, write(io.Discard, []Series{s}), "zero: the row for 2 bytes has no value")
	require.ErrorIs(t, Draw(filepath.Join(t.TempDir(), "none", "plot.svg"), nil), os.ErrNotExist)
}
