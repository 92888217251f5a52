// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/fabric"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// zeroErrors has the zero value of each exported error type.
var zeroErrors = map[string]error{
	"fabric.Error":            new(fabric.Error),
	"fabric.Problem":          new(fabric.Problem),
	"fabric.Status":           fabric.Status(0),
	"ibverbs.ArgumentError":   new(ibverbs.ArgumentError),
	"ibverbs.BusyError":       new(ibverbs.BusyError),
	"ibverbs.Error":           new(ibverbs.Error),
	"ibverbs.LibraryError":    new(ibverbs.LibraryError),
	"ibverbs.PostError":       new(ibverbs.PostError),
	"ibverbs.ReregError":      new(ibverbs.ReregError),
	"ibverbs.SymbolError":     new(ibverbs.SymbolError),
	"ibverbs.TransitionError": new(ibverbs.TransitionError),
	"ibverbs.WCError":         new(ibverbs.WCError),
	"ibverbs.WCStatus":        ibverbs.WCStatus(0),
	"rdmacm.AddrInfoError":    new(rdmacm.AddrInfoError),
	"rdmacm.EventError":       new(rdmacm.EventError),
	"rdmacm.PendingError":     new(rdmacm.PendingError),
	"rdmacm.QPError":          new(rdmacm.QPError),
	"rdmacm.RejectedError":    new(rdmacm.RejectedError),
}

// The zero value of an error, as tests and programs that wrap errors make it,
// has a text, and none of its methods panics.
func TestZeroErrors(t *testing.T) {
	var known []string
	for name, err := range zeroErrors {
		known = append(known, name)
		t.Run(name, func(t *testing.T) {
			require.NotEmpty(t, err.Error())
			require.NotContains(t, err.Error(), "nil")
			other := errors.New("another error")
			require.NotErrorIs(t, err, other)
			require.NotErrorIs(t, errors.Join(other, err), rdmacm.ErrBacklogFull)
			_, isStatus := errors.AsType[ibverbs.WCStatus](err)
			require.Equal(t, strings.HasPrefix(name, "ibverbs.WC"), isStatus)
			for method, f := range reflect.ValueOf(err).Methods() {
				args := make([]reflect.Value, f.Type().NumIn())
				for i := range args {
					args[i] = reflect.Zero(f.Type().In(i))
				}
				require.NotPanics(t, func() { f.Call(args) }, method.Name)
			}
		})
	}
	exported := exportedErrors(t)
	slices.Sort(known)
	require.Equal(t, exported, known)
}

// exportedErrors returns the exported types with a method Error that programs
// can import.
func exportedErrors(t *testing.T) (names []string) {
	t.Helper()
	for _, folder := range []string{"fabric", "ibverbs", "rdmacm", "rsocket", "softroce", "prometheus"} {
		require.NoError(t, filepath.WalkDir(filepath.Join("..", folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "/internal/") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for _, d := range file.Decls {
				f, isFunc := d.(*ast.FuncDecl)
				if !isFunc || f.Recv == nil || f.Name.Name != "Error" {
					continue
				}
				receiver := f.Recv.List[0].Type
				if pointer, ok := receiver.(*ast.StarExpr); ok {
					receiver = pointer.X
				}
				if name, ok := receiver.(*ast.Ident); ok && name.IsExported() {
					names = append(names, file.Name.Name+"."+name.Name)
				}
			}
			return nil
		}))
	}
	slices.Sort(names)
	return names
}
