// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"encoding/json"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// rooms are the folders of the module, and for each the folders whose packages
// its own may import, besides each other. Where one is in another, the inner
// one counts.
var rooms = map[string][]string{
	"internal":          {}, // the sources that gen bind copies
	"internal/bound":    {},
	"internal/cerr":     {},
	"internal/enum":     {},
	"internal/mem":      {},
	"internal/turns":    {},
	"internal/netpoll":  {"internal/cerr"},
	"internal/backlog":  {"internal/netpoll"},
	"internal/netlink":  {},
	"internal/inquiry":  {},
	"internal/nldev":    {"internal/netlink"},
	"internal/object":   {"internal/cerr"},
	"internal/dl":       {"internal/cerr"},
	"generated":         {"internal/cerr", "internal/dl", "internal/enum"},
	"internal/datapath": {"generated", "internal/dl"},
	"internal/cmevent":  {"generated"},
	"internal/sealed":   {},
	"ibverbs/link":      {"generated", "internal/enum"},
	"ibverbs/caps":      {"generated"},
	"ibverbs/stat":      {"internal/netlink", "internal/nldev"},
	"ibverbs": {
		"ibverbs/caps", "ibverbs/link", "ibverbs/internal/batchmem", "generated", "internal/cerr", "internal/datapath", "internal/enum",
		"internal/mem", "internal/netpoll", "internal/object", "internal/sealed",
	},
	"ibverbs/internal/batchmem": {"generated", "internal/cerr", "internal/mem"},
	"ibverbs/internal/sibling":  {"ibverbs", "generated", "internal/cerr", "internal/object", "internal/sealed"},
	"ibverbs/devmem":            {"ibverbs", "ibverbs/internal/sibling", "generated", "internal/cerr", "internal/object", "internal/sealed"},
	"ibverbs/share": {
		"ibverbs", "ibverbs/internal/sibling", "generated", "internal/cerr", "internal/netpoll", "internal/object", "internal/sealed",
	},
	"ibverbs/counter": {"ibverbs", "ibverbs/internal/sibling", "generated", "internal/cerr", "internal/object"},
	"ibverbs/tag":     {"ibverbs", "ibverbs/internal/batchmem", "ibverbs/internal/sibling", "generated", "internal/cerr", "internal/sealed"},
	"ibverbs/flow":    {"ibverbs", "ibverbs/internal/sibling", "generated", "internal/cerr", "internal/object", "internal/sealed"},
	"ibverbs/efa":     {"ibverbs", "ibverbs/internal/sibling", "generated", "internal/sealed"},
	"ibverbs/mlx5":    {"ibverbs", "ibverbs/internal/sibling", "generated", "internal/cerr", "internal/sealed"},
	"internal/owned":  {"ibverbs"},
	"fabric":          {"ibverbs/link", "generated", "internal/cerr", "internal/enum", "internal/object"},
	"rdmacm": {
		"ibverbs", "ibverbs/link", "generated", "internal/backlog", "internal/cerr", "internal/cmevent", "internal/mem", "internal/netpoll", "internal/object",
		"internal/owned", "internal/sealed", "internal/turns",
	},
	"rdmacm/endpoint": {
		"rdmacm", "ibverbs", "generated", "internal/cerr", "internal/netpoll", "internal/object", "internal/owned", "internal/sealed",
	},
	"rdmacm/handled":            {"rdmacm", "ibverbs", "internal/cerr", "internal/netpoll", "internal/object", "internal/sealed"},
	"rsocket/internal/protocol": {},
	"rsocket": {
		"rsocket/internal/protocol", "rdmacm", "ibverbs", "ibverbs/link", "generated", "internal/backlog", "internal/cerr", "internal/mem",
		"internal/sealed", "internal/turns",
	},
	"transfer":     {"rdmacm", "ibverbs", "generated", "internal/cerr", "internal/inquiry", "internal/mem", "internal/sealed"},
	"cmd/internal": {"rdmacm/endpoint", "rdmacm", "ibverbs", "softroce"},
	"cmd": {
		"cmd/internal", "rsocket", "rdmacm/endpoint", "rdmacm/handled", "rdmacm", "ibverbs", "ibverbs/link", "ibverbs/stat", "ibverbs/tag",
		"generated", "softroce",
	},
	"cmd/verbena": {
		"cmd/internal", "fabric", "transfer", "rsocket", "rdmacm/endpoint", "rdmacm/handled", "rdmacm", "ibverbs", "ibverbs/devmem", "ibverbs/link",
		"ibverbs/stat", "generated", "softroce",
	},
	"examples": {"transfer", "rsocket", "rdmacm", "ibverbs", "softroce"},
	"gen":      {"internal"},
	"":         {}, // doc.go

	"softroce/internal/wire":     {},
	"softroce/internal/link":     {"internal/inquiry", "internal/netlink"},
	"softroce/internal/stat":     {},
	"softroce/internal/detector": {},
	"softroce/internal/engine":   {"softroce/internal/detector", "softroce/internal/wire", "generated"},
	"softroce/internal/cm":       {"softroce/internal/wire", "generated"},
	"softroce/internal/node": {
		"softroce/internal/cm", "softroce/internal/engine", "softroce/internal/link", "softroce/internal/stat", "softroce/internal/wire", "generated",
	},
	"softroce/internal/capi": {
		"softroce/internal/node", "softroce/internal/cm", "softroce/internal/detector", "softroce/internal/engine", "softroce/internal/stat",
		"softroce/internal/wire", "generated", "internal/cmevent", "internal/datapath",
	},
	// C's rsockets, which only the shared library for programs in other languages
	// has: over package rsocket, so above it, while the rest of softroce is not.
	"softroce/internal/csocket": {"softroce/internal/capi", "rsocket", "rdmacm", "generated", "internal/dl", "internal/sealed"},
	"softroce/internal/clib":    {"softroce/internal/capi", "softroce/internal/csocket"}, // a program
	"softroce": {
		"internal/cerr", "internal/dl", "softroce/internal/capi", "softroce/internal/node", "softroce/internal/link", "softroce/internal/stat",
		"softroce/internal/wire",
	},

	// What tests alone import: see forTests.
	"cmd/internal/programtest": {"cmd/internal", "internal/testutil", "rdmacm/endpoint", "rdmacm", "ibverbs", "softroce"},
	"internal/testutil": {
		"softroce", "rsocket", "rdmacm/endpoint", "rdmacm/handled", "rdmacm", "ibverbs", "ibverbs/link", "generated", "internal/dl", "internal/netpoll", "internal/enum",
	},
	"tests": {},
}

// forTests are the rooms that all tests may import, and nothing else may.
var forTests = []string{"internal/testutil", "cmd/internal/programtest"}

// above are rooms that the tests and examples of a room import besides: at run
// time one of both stands on the other.
var above = map[string][]string{
	"softroce": {"rdmacm/endpoint", "rdmacm", "ibverbs", "ibverbs/counter", "ibverbs/devmem", "ibverbs/link", "ibverbs/share", "ibverbs/tag"},
	"rdmacm":   {"softroce"},
	"transfer": {"softroce"},
}

type listed struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
}

// list returns the packages of this module, by their folders. What they import
// is in the same form, without what is not of this module but C.
func list(t *testing.T) map[string]listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,TestImports,XTestImports", module+"...")
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=1")
	out, err := cmd.Output()
	require.NoError(t, err)

	folder := func(path string) (string, bool) {
		rest, ok := strings.CutPrefix(path+"/", module)
		return strings.TrimSuffix(rest, "/"), ok || path == "C"
	}
	ours := func(paths []string) []string {
		var names []string
		for _, path := range paths {
			if name, ok := folder(path); ok {
				names = append(names, name)
			}
		}
		return names
	}
	all := map[string]listed{}
	for d := json.NewDecoder(strings.NewReader(string(out))); d.More(); {
		var p listed
		require.NoError(t, d.Decode(&p))
		name, _ := folder(p.ImportPath)
		all[name] = listed{name, ours(p.Imports), ours(p.TestImports), ours(p.XTestImports)}
	}
	return all
}

// room returns the room that a package is in.
func room(pkg string) string {
	found := ""
	for name := range rooms {
		if (pkg == name || strings.HasPrefix(pkg, name+"/")) && len(name) > len(found) {
			found = name
		}
	}
	return found
}

// below reports whether packages of a room stand on those of another, be it by
// others.
func below(in, other string) bool {
	return slices.ContainsFunc(rooms[in], func(name string) bool { return name == other || below(name, other) })
}

func TestImports(t *testing.T) {
	all := list(t)
	for name := range rooms {
		require.Truef(t, slices.ContainsFunc(slices.Collect(maps.Keys(all)), func(pkg string) bool { return room(pkg) == name }),
			"no package is in the room %q", name)
	}
	for name, pkg := range all {
		in := room(name)
		for _, imported := range pkg.Imports {
			if imported == "C" {
				require.Truef(t, in == "generated" || strings.HasPrefix(in, "internal/") || in == "softroce/internal/capi", "%s imports C", name)
				continue
			}
			to := room(imported)
			require.Truef(t, to == in || slices.Contains(rooms[in], to), "%s imports %s, which is not below it", name, imported)
		}
		for _, imported := range slices.Concat(pkg.TestImports, pkg.XTestImports) {
			to := room(imported)
			require.NotEqualf(t, "C", imported, "the tests of %s import C", name)
			// Tests may use what stands on the package if that is in its folder.
			require.Truef(t, to == in || in == "tests" || slices.Contains(forTests, to) || below(in, to) || strings.HasPrefix(to, in+"/") ||
				slices.Contains(above[in], to),
				"the tests of %s import %s, which is not below it", name, imported)
		}
	}
}

// Below capi, the device in user space needs no C: without cgo, its packages
// and their tests are what they are with it.
func TestNodeNeedsNoC(t *testing.T) {
	for _, pkg := range []string{"wire", "link", "stat", "engine", "cm", "node"} {
		files := func(cgo string) string {
			cmd := exec.Command("go", "list", "-f", "{{.GoFiles}} {{.TestGoFiles}} {{.XTestGoFiles}}", module+"softroce/internal/"+pkg)
			cmd.Env = append(cmd.Environ(), "CGO_ENABLED="+cgo)
			out, err := cmd.Output()
			require.NoError(t, err)
			return string(out)
		}
		require.Equal(t, files("1"), files("0"), pkg)
	}
}

// A program that does not import the device in user space does not contain it.
func TestSoftroceIsChosen(t *testing.T) {
	for _, folder := range []string{"rdmacm", "rsocket", "ibverbs/flow"} {
		out, err := exec.Command("go", "list", "-deps", module+folder).Output()
		require.NoError(t, err)
		require.Contains(t, string(out), module+"ibverbs\n")
		require.NotContains(t, string(out), module+"softroce")
	}
}

// Programs that import the device do not contain C's rsockets, nor therefore
// package rsocket unless they import it.
func TestRsocketsAreOfTheLibrary(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", module+"softroce").Output()
	require.NoError(t, err)
	require.NotContains(t, string(out), module+"rsocket")
	require.NotContains(t, string(out), "csocket")
}

// Programs do without large packages of Go's that the library would hardly use.
// Each makes their first build and their size larger.
func TestLargePackagesAreLeftOut(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", module+"rsocket", module+"softroce").Output()
	require.NoError(t, err)
	for pkg := range strings.Lines(string(out)) {
		require.NotRegexp(t, `^(crypto/.*|math/big|net/http|os/exec|regexp|text/template)$`, strings.TrimSpace(pkg))
	}
}

// One file for each package with C is what cgo takes least time for.
func TestOneFileOfCapiSeesC(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", "{{.CgoFiles}}", module+"softroce/internal/capi").Output()
	require.NoError(t, err)
	require.Equal(t, "[c.go]\n", string(out))
}
