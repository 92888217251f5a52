//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package provider

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/flow"
	"github.com/verbena-go/verbena/internal/testutil/misuse"
)

// A closed object answers every call with os.ErrClosed, whatever the arguments
// are, closes again without an error, and never touches what C had of it:
// fakelib makes C's memory unreadable nonsense when it is freed.
func TestUseAfterClose(t *testing.T) {
	for kind, create := range kinds {
		t.Run(kind, func(t *testing.T) {
			r := open(t)
			known := r.known(t)
			o := create(t, r)
			before := answers(t, o)
			require.NoError(t, o.Close())
			require.NoError(t, o.Close(), "twice")
			r.p.Forget()
			for _, m := range methods(o) {
				if m.Name == "Close" {
					continue
				}
				for name, args := range map[string]func(reflect.Type) reflect.Value{
					"zero": misuse.Zero, "filled": misuse.Filled(1, known...),
				} {
					_, err := m.Call(args)
					requireNoPanic(t, err)
					switch {
					case m.Fails && name == "filled":
						require.ErrorIs(t, err, os.ErrClosed, m.Name)
					case m.Fails:
						require.Error(t, err, m.Name)
					}
				}
			}
			require.Equal(t, before, answers(t, o))
			require.Empty(t, r.p.Names(), "C learns nothing of it")
		})
	}
}

// answers are what the methods say that only say something about the object.
// Its memory, and C's address of it, are only there while it is open.
func answers(t *testing.T, o closer) map[string]any {
	t.Helper()
	answers := map[string]any{}
	for _, m := range methods(o) {
		if m.Getter() && m.Name != "Bytes" {
			results, err := m.Call(misuse.Zero)
			require.NoError(t, err)
			answers[m.Name] = results[0]
			if v := reflect.ValueOf(results[0]); v.Kind() == reflect.Pointer {
				answers[m.Name] = v.Pointer()
			}
		}
	}
	return answers
}

// noFile stands for files: package os itself panics for one that it has not
// opened.
var noFile *os.File

// No mistake of a caller's panics or crashes C.
func TestNonsenseArguments(t *testing.T) {
	for kind, create := range kinds {
		for name, args := range map[string]func(reflect.Type) reflect.Value{
			"zero": misuse.Zero, "ones": misuse.Filled(1, noFile), "negative": misuse.Filled(-1, noFile),
			"largest": misuse.Filled(math.MaxInt64, noFile), "least": misuse.Filled(math.MinInt64, noFile),
		} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				r := open(t)
				o := create(t, r)
				for _, m := range methods(o) {
					if m.Name != "Close" {
						r.p.Forget()
						_, err := m.Call(args)
						requireNoPanic(t, err)
						requirePublic(t, err)
						var failed *ibverbs.Error
						if errors.As(err, &failed) {
							require.NotEmpty(t, r.p.Names(), "%s: C was not called: %v", m.Name, err)
						}
					}
				}
				require.NoError(t, o.Close())
			})
		}
	}
}

// Objects that nobody made answer with an error.
func TestObjectsNobodyMade(t *testing.T) {
	r := open(t)
	known := r.known(t)
	for kind, create := range kinds {
		o := create(t, r)
		require.NoError(t, o.Close())
		for name, wrong := range map[string]reflect.Value{
			"nil": reflect.Zero(reflect.TypeOf(o)), "zero": reflect.New(reflect.TypeOf(o).Elem()),
		} {
			for _, m := range methods(wrong.Interface()) {
				if !m.Fails {
					continue
				}
				for _, args := range []func(reflect.Type) reflect.Value{misuse.Zero, misuse.Filled(1, noFile), misuse.Filled(1, known...)} {
					_, err := m.Call(args)
					requireNoPanic(t, err)
					var refused *ibverbs.ArgumentError
					require.ErrorAs(t, err, &refused, "%s %s.%s", name, kind, m.Name)
				}
			}
		}
	}
}

func requireNoPanic(t *testing.T, err error) {
	t.Helper()
	var p *misuse.Panic
	require.False(t, errors.As(err, &p), "%v", err)
}

// known are arguments that are right, as far as one can say without the call.
func (r *rig) known(t *testing.T) []any {
	t.Helper()
	mr := keep(t, must(r.pd.Alloc(64, ibverbs.AccessLocalWrite|ibverbs.AccessWindowBind))(t))
	send, recv := must(ibverbs.NewSendBatch(1, 1))(t), must(ibverbs.NewRecvBatch(1, 1))(t)
	require.NoError(t, send.Send(1, 0))
	require.NoError(t, recv.Recv(1))
	var wc ibverbs.WC
	cq := r.cq()
	known := []any{
		r.c, r.pd, mr, mr.All(), send, recv, &wc,
		flow.Drop{},
		noFile,
		ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1},
	}
	for _, kind := range []string{"CQ to wait on", "RC QP", "SRQ", "XRCD", "WQ", "indirection table", "AH", "comp counter", "counters", "DM", "DMA handle", "TD", "rule", "CompChannel"} {
		known = append(known, keep(t, kinds[kind](t, r)))
	}
	return known
}

// Nothing that can be closed is missing above.
func TestEveryKind(t *testing.T) {
	want := map[string]bool{}
	for _, pkg := range []string{"ibverbs", "ibverbs/flow"} {
		for name := range declared(t, pkg, `\(\w+ \*([A-Z]\w*)\) Close\(\) error`) {
			want[name] = true
		}
	}
	r := open(t)
	got := map[string]bool{}
	for _, create := range kinds {
		o := create(t, r)
		got[reflect.TypeOf(o).Elem().Name()] = true
		require.NoError(t, o.Close())
	}
	require.Equal(t, want, got)
}

// Nor is a function that does what methods do elsewhere.
func TestEveryFunction(t *testing.T) {
	got := map[string]bool{}
	for _, f := range functions {
		got[misuse.Name(f)] = true
	}
	require.Equal(t, declared(t, "ibverbs/flow", `([A-Z]\w*)\(\w+ \*ibverbs\.`), got)
}

// declared returns what the first group of a pattern is in the functions that a
// package declares.
func declared(t *testing.T, pkg, pattern string) map[string]bool {
	t.Helper()
	files := must(filepath.Glob("../../" + pkg + "/*.go"))(t)
	require.NotEmpty(t, files)
	found := map[string]bool{}
	for _, file := range files {
		source := must(os.ReadFile(file))(t)
		for _, m := range regexp.MustCompile(`(?m)^func `+pattern).FindAllSubmatch(source, -1) {
			found[string(m[1])] = true
		}
	}
	return found
}

// Memory that only the device reaches cannot be what C looks at.
func TestHeaderOnDevice(t *testing.T) {
	r := open(t)
	mr := keep(t, kinds["DMA-BUF MR"](t, r)).(*ibverbs.MR)
	s := must(ibverbs.NewSendBatch(1, 1))(t)
	for _, err := range []error{s.TSO(1, mr.Sub(0, 14), 100, 0), s.Send(1, ibverbs.SendInline, mr.All())} {
		require.ErrorIs(t, err, syscall.EINVAL)
		require.ErrorContains(t, err, "only the device reaches it")
	}
	require.Zero(t, s.Len())
}
