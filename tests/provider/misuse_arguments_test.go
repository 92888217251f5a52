//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package provider

import (
	"os"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/flow"
	"github.com/verbena-go/verbena/internal/testutil/misuse"
)

// A call with an object that is closed fails as one of a closed object does,
// and C does not learn of it.
func TestClosedArguments(t *testing.T) {
	r := open(t)
	closed := map[reflect.Type]closer{}
	for _, kind := range []string{
		"PD", "CompChannel", "CQ", "RC QP", "SRQ", "XRCD", "WQ", "indirection table", "AH", "MW type 2", "MR", "DM", "DMA handle",
		"TD", "counters", "comp counter", "rule", "ESP action",
	} {
		o := kinds[kind](t, r)
		closed[reflect.TypeOf(o)] = o
		require.NoError(t, o.Close())
	}
	cq := closed[reflect.TypeFor[*ibverbs.CQ]()].(*ibverbs.CQ)
	mr := closed[reflect.TypeFor[*ibverbs.MR]()].(*ibverbs.MR)
	known := []any{
		noFile, mr.Sub(0, 8),
		ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSendWR: 1},
		ibverbs.SRQConfig{Type: ibverbs.SRQTypeTagMatching, MaxWR: 1, CQ: cq, MaxTags: 1, MaxTagOps: 1},
	}
	for _, o := range closed {
		known = append(known, o)
	}
	taken := map[reflect.Type]bool{}
	for kind, create := range kinds {
		o := create(t, r)
		r.p.Forget()
		for _, m := range methods(o) {
			objects := closers(m.Takes())
			if len(objects) == 0 {
				continue
			}
			for _, object := range objects {
				taken[object] = true
			}
			_, err := m.Call(misuse.Filled(1, known...))
			require.ErrorIs(t, err, os.ErrClosed, "%s: %s", kind, m.Name)
			require.Empty(t, r.p.Names(), "%s: %s", kind, m.Name)
		}
		require.NoError(t, o.Close())
	}
	require.GreaterOrEqual(t, len(taken), 13, "kinds of objects")

	qp := r.qp(ibverbs.QPTypeRawPacket)
	for _, spec := range []flow.Spec{
		flow.Count{Counters: closed[reflect.TypeFor[*flow.Counters]()].(*flow.Counters)},
		flow.Apply{Action: closed[reflect.TypeFor[*flow.Action]()].(*flow.Action)},
	} {
		_, err := flow.Create(qp, flow.Config{Specs: []flow.Spec{spec}})
		require.ErrorIs(t, err, os.ErrClosed)
	}
}

// closers returns the objects that values of the types have.
func closers(types []reflect.Type) (found []reflect.Type) {
	for _, typ := range types {
		switch {
		case typ.Kind() == reflect.Pointer && typ.Implements(reflect.TypeFor[closer]()):
			switch typ.Elem().PkgPath() {
			case reflect.TypeFor[ibverbs.QP]().PkgPath(), reflect.TypeFor[flow.Rule]().PkgPath():
				found = append(found, typ)
			}
		case typ == reflect.TypeFor[ibverbs.Segment]():
			found = append(found, reflect.TypeFor[*ibverbs.MR]())
		case typ.Kind() == reflect.Slice:
			found = append(found, closers([]reflect.Type{typ.Elem()})...)
		case typ.Kind() == reflect.Struct:
			for i := range typ.NumField() {
				if typ.Field(i).IsExported() {
					found = append(found, closers([]reflect.Type{typ.Field(i).Type})...)
				}
			}
		}
	}
	return found
}
