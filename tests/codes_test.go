// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/counter"
	"github.com/verbena-go/verbena/ibverbs/devmem"
	"github.com/verbena-go/verbena/ibverbs/efa"
	"github.com/verbena-go/verbena/ibverbs/flow"
	ports "github.com/verbena-go/verbena/ibverbs/link"
	"github.com/verbena-go/verbena/ibverbs/mlx5"
	"github.com/verbena-go/verbena/ibverbs/tag"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/softroce"
)

// codes are the types whose values exclude each other: numbers from C, from
// devices and from peers, and this module's own.
var codes = map[string]func(n uint32) fmt.Stringer{
	"counter.Unit":       func(n uint32) fmt.Stringer { return counter.Unit(n) },
	"devmem.TPHMemType":  func(n uint32) fmt.Stringer { return devmem.TPHMemType(n) },
	"efa.Op":             func(n uint32) fmt.Stringer { return efa.Op(n) },
	"flow.CounterKind":   func(n uint32) fmt.Stringer { return flow.CounterKind(n) },
	"flow.Type":          func(n uint32) fmt.Stringer { return flow.Type(n) },
	"flow.WQState":       func(n uint32) fmt.Stringer { return flow.WQState(n) },
	"ibverbs.Advice":     func(n uint32) fmt.Stringer { return ibverbs.Advice(n) },
	"ibverbs.EventClass": func(n uint32) fmt.Stringer { return ibverbs.EventClass(n) },
	"ibverbs.EventType":  func(n uint32) fmt.Stringer { return ibverbs.EventType(n) },
	"ibverbs.GIDType":    func(n uint32) fmt.Stringer { return ibverbs.GIDType(n) },
	"ibverbs.MTU":        func(n uint32) fmt.Stringer { return ibverbs.MTU(n) },
	"ibverbs.MWType":     func(n uint32) fmt.Stringer { return ibverbs.MWType(n) },
	"ibverbs.MigState":   func(n uint32) fmt.Stringer { return ibverbs.MigState(n) },
	"ibverbs.NodeType":   func(n uint32) fmt.Stringer { return ibverbs.NodeType(n) },
	"ibverbs.QPState":    func(n uint32) fmt.Stringer { return ibverbs.QPState(n) },
	"ibverbs.QPType":     func(n uint32) fmt.Stringer { return ibverbs.QPType(n) },
	"ibverbs.Rate":       func(n uint32) fmt.Stringer { return ibverbs.Rate(n) },
	"ibverbs.SRQType":    func(n uint32) fmt.Stringer { return ibverbs.SRQType(n) },
	"ibverbs.Transport":  func(n uint32) fmt.Stringer { return ibverbs.Transport(n) },
	"ibverbs.WCClass":    func(n uint32) fmt.Stringer { return ibverbs.WCClass(n) },
	"ibverbs.WCOpcode":   func(n uint32) fmt.Stringer { return ibverbs.WCOpcode(n) },
	"ibverbs.WCStatus":   func(n uint32) fmt.Stringer { return ibverbs.WCStatus(n) },
	"link.Layer":         func(n uint32) fmt.Stringer { return ports.Layer(n) },
	"link.PhysState":     func(n uint32) fmt.Stringer { return ports.PhysState(n) },
	"link.LaneSpeed":     func(n uint32) fmt.Stringer { return ports.LaneSpeed(n) },
	"link.State":         func(n uint32) fmt.Stringer { return ports.State(n) },
	"link.Width":         func(n uint32) fmt.Stringer { return ports.Width(n) },
	"mlx5.Op":            func(n uint32) fmt.Stringer { return mlx5.Op(n) },
	"rdmacm.EventType":   func(n uint32) fmt.Stringer { return rdmacm.EventType(n) },
	"rdmacm.PortSpace":   func(n uint32) fmt.Stringer { return rdmacm.PortSpace(n) },
	"rdmacm.Reason":      func(n uint32) fmt.Stringer { return rdmacm.Reason(n) },
	"softroce.Kind":      func(n uint32) fmt.Stringer { return softroce.Kind(n) },
	"tag.MessageKind":    func(n uint32) fmt.Stringer { return tag.MessageKind(n) },
}

// otherNumbers are the types whose String is the number itself, or has bits
// without a name as a number. The generated packages' TestEnums has those of
// flags, and the packages' own tests the rest.
var otherNumbers = []string{
	"caps.Flags", "caps.QPTypes", "counter.Ops", "efa.Caps", "efa.QPFlags", "flow.ESPFlags", "flow.Flags", "flow.RSSFields", "flow.RSSFunction", "flow.WQFlags",
	"ibverbs.AccessFlags", "ibverbs.DataInOrder", "ibverbs.FlushPlacement", "ibverbs.GUID", "ibverbs.PKey", "ibverbs.QPAttrMask",
	"ibverbs.QPCreateFlags", "ibverbs.SendFlags", "ibverbs.SendOpsFlags", "ibverbs.WCFields", "ibverbs.WCFlags", "mlx5.Flags", "rdmacm.JoinFlags",
	"tag.OpFlags",
}

// TestUnknownCodes prints a value that the headers do not have, as a newer
// kernel or another peer may send it: the text has its number.
func TestUnknownCodes(t *testing.T) {
	for name, code := range codes {
		for _, n := range []uint32{201, 233} { // of 8 bits, as link.Width
			require.Contains(t, code(n).String(), fmt.Sprint(n), name)
		}
	}
}

// TestCodesAreComplete compares the tables above with the types that the
// packages have.
func TestCodesAreComplete(t *testing.T) {
	want := slices.Clone(otherNumbers)
	for name := range codes {
		want = append(want, name)
	}
	var got []string
	for _, pattern := range []string{"../ibverbs", "../ibverbs/*", "../rdmacm", "../rdmacm/*", "../rsocket", "../softroce"} {
		folders, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, folder := range folders {
			got = append(got, printedNumbers(t, folder)...)
		}
	}
	require.ElementsMatch(t, want, got)
}

// printedNumbers returns the exported types of a package that are numbers with
// a String method, or are a type of a generated package.
func printedNumbers(t *testing.T, folder string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	require.NoError(t, err)
	types, printed := map[string]bool{}, map[string]bool{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		for _, decl := range parsed.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Name.Name == "String" && d.Recv != nil {
					if receiver, ok := d.Recv.List[0].Type.(*ast.Ident); ok {
						printed[receiver.Name] = true
					}
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if s, ok := spec.(*ast.TypeSpec); ok && s.Name.IsExported() {
						addNumber(types, s)
					}
				}
			}
		}
	}
	for name, alias := range types {
		if alias || printed[name] {
			names = append(names, filepath.Base(folder)+"."+name)
		}
	}
	return names
}

// addNumber adds the type if it is a number, and whether it is an alias of a
// generated one, which has its String.
func addNumber(types map[string]bool, s *ast.TypeSpec) {
	switch of := s.Type.(type) {
	case *ast.Ident:
		if strings.Contains(of.Name, "int") {
			types[s.Name.Name] = false
		}
	case *ast.SelectorExpr:
		if p, ok := of.X.(*ast.Ident); ok && strings.HasPrefix(p.Name, "lib") {
			types[s.Name.Name] = s.Assign.IsValid()
		}
	}
}
