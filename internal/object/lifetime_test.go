// SPDX-License-Identifier: Apache-2.0

package object

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/cerr"
)

func destroyed() error { return nil }

// made returns an object; it is closed at the end of the test.
func made(t *testing.T, name string, parents ...*Object) *Object {
	t.Helper()
	o := new(Object)
	o.Init(name, parents...)
	t.Cleanup(func() { require.NoError(t, o.Close(nil, destroyed)) })
	return o
}

func TestCloseOrder(t *testing.T) {
	tests := map[string]struct {
		close []string // all succeed
		fails string
		want  string // the error's text
	}{
		"leaf":                 {close: []string{"qp", "mr", "cq", "pd", "context"}},
		"any order of leaves":  {close: []string{"mr", "qp", "pd", "cq", "context"}},
		"one child":            {close: []string{"qp"}, fails: "pd", want: "pd: close first: mr"},
		"several are sorted":   {fails: "pd", want: "pd: close first: mr, qp"},
		"child of two parents": {fails: "cq", want: "cq: close first: qp"},
		"no grandchildren":     {fails: "context", want: "context: close first: cq, pd"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			objects := map[string]*Object{}
			objects["context"] = made(t, "context")
			objects["pd"] = made(t, "pd", objects["context"])
			objects["cq"] = made(t, "cq", objects["context"])
			objects["mr"] = made(t, "mr", objects["pd"])
			objects["qp"] = made(t, "qp", objects["pd"], objects["cq"], objects["cq"])
			for _, c := range tt.close {
				require.NoError(t, objects[c].Close(nil, destroyed), c)
				require.True(t, objects[c].Closed())
			}
			if tt.fails == "" {
				return
			}
			o := objects[tt.fails]
			err := o.Close(nil, func() error {
				t.Error("destroyed with children")
				return nil
			})
			require.EqualError(t, err, tt.want)
			require.ErrorIs(t, err, syscall.EBUSY)
			var busy *cerr.BusyError
			require.ErrorAs(t, err, &busy)
			require.Equal(t, tt.fails, busy.Object)

			require.False(t, o.Closed())
			require.NoError(t, o.Err())
			require.NoError(t, o.Use())
			o.Done()
		})
	}
}

func TestBusyErrorIsShort(t *testing.T) {
	parent := made(t, "pd")
	for range 1000 {
		made(t, "mr", parent)
	}
	err := parent.Close(nil, destroyed)
	require.EqualError(t, err, "pd: close first: mr, mr, mr, mr, mr, mr, mr, mr, and 992 more")
	var busy *cerr.BusyError
	require.ErrorAs(t, err, &busy)
	require.Len(t, busy.Children, 1000)
}

func TestCloseIsIdempotent(t *testing.T) {
	o := made(t, "o")
	calls := 0
	for range 3 {
		require.NoError(t, o.Close(nil, func() error { calls++; return nil }))
	}
	require.Equal(t, 1, calls)
	require.ErrorIs(t, o.Use(), os.ErrClosed)
	require.EqualError(t, o.Use(), "o: file already closed")
	require.ErrorIs(t, o.Err(), os.ErrClosed)
}

func TestFailedDestroyLeavesItUsable(t *testing.T) {
	refused := errors.New("refused")
	parent := made(t, "parent")
	o := made(t, "o", parent)
	for range 3 {
		require.ErrorIs(t, o.Close(nil, func() error {
			require.True(t, o.Closed(), "while it is destroyed")
			require.ErrorIs(t, o.Use(), os.ErrClosed)
			return refused
		}), refused)
		require.False(t, o.Closed())
		require.NoError(t, o.Use())
		o.Done()
		require.EqualError(t, parent.Close(nil, destroyed), "parent: close first: o")
		require.Contains(t, Open(), "o")
	}
	require.NoError(t, o.Close(nil, destroyed))
	require.NoError(t, parent.Close(nil, destroyed))
}

func TestUseAll(t *testing.T) {
	a, b, c := made(t, "a"), made(t, "b"), made(t, "c")
	done, err := UseAll(a, b, c)
	require.NoError(t, err)
	require.EqualValues(t, 1, b.state.Load())
	done()
	require.Zero(t, b.state.Load())

	require.NoError(t, b.Close(nil, destroyed))
	_, err = UseAll(a, b, c)
	require.EqualError(t, err, "b: file already closed")
	for _, o := range []*Object{a, c} {
		require.Zero(t, o.state.Load(), "nothing stays in use")
	}
}

func TestNotMade(t *testing.T) {
	for name, o := range map[string]*Object{"nil": nil, "zero": {}} {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, o.Use(), os.ErrInvalid)
			require.ErrorIs(t, o.Close(nil, destroyed), os.ErrInvalid)
			_, err := UseAll(made(t, "good"), o)
			require.ErrorIs(t, err, os.ErrInvalid)
		})
	}
}
