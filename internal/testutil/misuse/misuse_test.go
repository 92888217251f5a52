// SPDX-License-Identifier: Apache-2.0

package misuse

import (
	"context"
	"errors"
	"iter"
	"math"
	"os"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
)

type object struct {
	name string
	made *object
	open bool
}

func (o *object) Name() string { return o.name }

func (o *object) Close() error {
	if !o.open {
		return os.ErrClosed
	}
	o.open = false
	return nil
}

func (o *object) Make() (*object, error) {
	o.made = &object{open: true}
	return o.made, nil
}

type config struct {
	N       int8
	Large   uint64
	Flags   []uint16
	Other   *object
	On      bool
	Key     [2]int32
	Create  func() (*object, error)
	private int
}

func (o *object) Take(ctx context.Context, c *config, text ...string) (int, error) {
	if ctx == nil {
		return 0, errors.New("no context")
	}
	made, err := c.Create()
	if ctx.Err() == nil || made != nil || err != nil || c.private != 0 || o == c.Other || !c.On || len(text) != 1 {
		return 0, errors.New("wrong arguments")
	}
	return int(c.N) + int(c.Key[1]), nil
}

func (o *object) Each() iter.Seq2[int, error] {
	return func(yield func(int, error) bool) { yield(0, os.ErrClosed) }
}

func (o *object) Panics([]byte) { panic("oops") }

func byName(t *testing.T, o *object) map[string]Method {
	methods := map[string]Method{}
	for _, m := range Methods(o) {
		methods[m.Name] = m
	}
	require.Len(t, methods, 6)
	return methods
}

func TestMethods(t *testing.T) {
	o := &object{name: "o", open: true}
	methods := byName(t, o)
	for name, want := range map[string][2]bool{
		"Name": {false, true}, "Close": {true, false}, "Make": {true, false}, "Take": {true, false}, "Each": {true, false},
		"Panics": {false, false},
	} {
		require.Equal(t, want, [2]bool{methods[name].Fails, methods[name].Getter()}, name)
	}
	call := func(name string) ([]any, error) { return methods[name].Call(Zero) }

	results, err := call("Name")
	require.NoError(t, err)
	require.Equal(t, []any{"o"}, results)
	_, err = call("Make")
	require.NoError(t, err)
	require.False(t, o.made.open, "what was made is closed")
	_, err = call("Each")
	require.ErrorIs(t, err, os.ErrClosed)
	_, err = call("Take")
	require.EqualError(t, err, "no context")
	_, err = call("Panics")
	var p *Panic
	require.ErrorAs(t, err, &p)
	require.EqualError(t, err, "Panics panics: oops")
	_, err = call("Close")
	require.NoError(t, err)
	_, err = call("Close")
	require.ErrorIs(t, err, os.ErrClosed)
}

// shout is a function that takes an object first.
func shout(o *object, times int, more ...string) (int, error) {
	if o.name == "" {
		return 0, os.ErrInvalid
	}
	return times + len(o.name) + len(more), nil
}

func TestMethodsOfFunctions(t *testing.T) {
	plain := Methods(&object{})
	require.Len(t, Methods(&object{}, func(string) {}), len(plain), "of another type")

	last := func(o *object) Method {
		methods := Methods(o, shout)
		require.Len(t, methods, len(plain)+1)
		return methods[len(plain)]
	}
	m := last(&object{name: "four"})
	require.Equal(t, "misuse.shout", m.Name)
	require.True(t, m.Fails)
	require.Equal(t, []reflect.Type{reflect.TypeFor[int](), reflect.TypeFor[[]string]()}, m.Takes())
	results, err := m.Call(Filled(3))
	require.NoError(t, err)
	require.Equal(t, []any{3 + 4 + 1}, results)
	_, err = last(&object{}).Call(Zero)
	require.ErrorIs(t, err, os.ErrInvalid)
}

func TestFilled(t *testing.T) {
	o := &object{}
	sum := func(a int8, b int32) int { return int(a) + int(b) }
	for n, want := range map[int64]int{
		-1: -2, 1: 2, 7: 14, math.MaxInt64: sum(math.MaxInt8, math.MaxInt32), math.MinInt64: sum(math.MinInt8, math.MinInt32),
	} {
		results, err := byName(t, o)["Take"].Call(Filled(n))
		require.NoError(t, err, n)
		require.Equal(t, []any{want}, results)
	}
	_, err := byName(t, o)["Take"].Call(Filled(1, o))
	require.EqualError(t, err, "wrong arguments", "the object itself")
}
