// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
	"github.com/verbena-go/verbena/gen/internal/headertest"
	"github.com/verbena-go/verbena/gen/internal/since"
	"github.com/verbena-go/verbena/internal/testutil/golden"
)

// load reads what the bindings are made from, anew so that a test may change
// it.
func load(t testing.TB) Input {
	t.Helper()
	in, err := Load(filepath.Join(headertest.Top(t), "headers"))
	require.NoError(t, err)
	return in
}

// loadAll reads what all bindings are made from.
func loadAll(t testing.TB) []Input {
	t.Helper()
	all, err := LoadAll(filepath.Join(headertest.Top(t), "headers"))
	require.NoError(t, err)
	require.Len(t, all, 5)
	return all
}

// readFacts returns a file of the folder headers.
func readFacts(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(headertest.Top(t), "headers", name))
	require.NoError(t, err)
	return string(text)
}

func parseSince(t *testing.T, text string) *since.Table {
	t.Helper()
	table, err := since.Parse("since.txt", []byte(text))
	require.NoError(t, err)
	return table
}

// readTree returns the files below dir.
func readTree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, name := range []string{"libefa", "libibmad", "libibumad", "libibverbs", "libmlx5", "librdmacm"} {
		entries, err := os.ReadDir(filepath.Join(dir, name))
		require.NoError(t, err)
		for _, e := range entries {
			text, err := os.ReadFile(filepath.Join(dir, name, e.Name()))
			require.NoError(t, err)
			files[name+"/"+e.Name()] = string(text)
		}
	}
	return files
}

// TestNothingChanged proves that generated/ is what the snapshot and the
// conventions give, and that the same input gives the same bytes.
func TestNothingChanged(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	for _, dir := range []string{first, second} {
		for _, in := range loadAll(t) {
			require.NoError(t, Emit(in, dir))
		}
	}
	want, again := readTree(t, first), readTree(t, second)
	have := readTree(t, filepath.Join(headertest.Top(t), "generated"))
	for name, text := range want {
		require.True(t, text == again[name], "%s differs from run to run", name)
		require.True(t, text == have[name], "generated/%s is not what gen makes; go run ./gen emit rewrites it", name)
	}
	require.Len(t, again, len(want))
	require.Len(t, have, len(want), "generated/ has files that gen does not make")
}

func TestEmitRemovesOldFiles(t *testing.T) {
	dir := t.TempDir()
	old := filepath.Join(dir, "librdmacm", "old.go")
	require.NoError(t, os.MkdirAll(filepath.Dir(old), 0o755))
	require.NoError(t, os.WriteFile(old, []byte("package librdmacm\n"), 0o600))
	require.NoError(t, Emit(load(t), dir))
	require.NoFileExists(t, old)
}

var (
	goDeclaration = regexp.MustCompile(`(?m)^(?:\t|const |type )(\w+)\b`)
	cDeclaration  = regexp.MustCompile(`(?m)^static \w+ stub_(\w+)\(`)
)

// names returns what the pattern captures in a text.
func names(pattern *regexp.Regexp, text ...[]byte) map[string]bool {
	found := map[string]bool{}
	for _, m := range pattern.FindAllSubmatch(bytes.Join(text, nil), -1) {
		found[string(m[1])] = true
	}
	return found
}

// TestNothingIsDropped looks for every declaration of the snapshot in the
// bindings.
func TestNothingIsDropped(t *testing.T) {
	in := load(t)
	all, err := packages(in)
	require.NoError(t, err)
	total := 0
	for _, p := range all {
		files, err := p.render()
		require.NoError(t, err)
		declared := names(goDeclaration, files["enums.go"], files["consts.go"], files["structs.go"])
		stubs := names(cDeclaration, files["stubs.c"])
		for _, f := range p.functions {
			require.Equal(t, f.why == "", stubs[f.Name()], f.Name())
		}
		for _, e := range p.enums {
			for _, v := range e.Values {
				require.True(t, declared[v.Name], v.Name)
			}
		}
		for _, m := range p.macros {
			require.True(t, declared[strings.TrimLeft(m.Name, "_")], m.Name)
		}
		for _, a := range p.aliases {
			require.True(t, declared[p.typeName(a.Name)], a.Name)
		}
		for _, s := range p.structs {
			_, tag, _ := strings.Cut(s.Name, " ")
			require.True(t, declared[p.typeName(tag)], s.Name)
		}
		total += len(p.functions) + len(p.enums) + len(p.structs) + len(p.macros) + len(p.aliases)
	}
	a := in.API
	require.Equal(t, len(a.Functions)+len(a.Enums)+len(a.Structs)+len(a.Macros)+len(a.Aliases), total)
}

// TestRefused has inputs from which bindings must not be made.
func TestRefused(t *testing.T) {
	versions := headertest.Versions(t)
	newest, before := versions[len(versions)-1], versions[len(versions)-2]
	release := strings.TrimSuffix(newest, ".0")
	lack := ", which the headers of rdma-core " + newest + " do not have"
	tests := []struct {
		name   string
		change func(*Input)
		want   string
	}{
		{"stale function", func(in *Input) {
			in.Known.Funcs["ibv_gone"] = &conventions.Func{Name: "ibv_gone", Class: conventions.Code}
		}, "conventions: a line for the function ibv_gone" + lack},
		{"stale header", func(in *Input) {
			in.Known.Headers = append(in.Known.Headers, &conventions.Header{Name: "infiniband/gone.h", Package: "libibverbs"})
		}, "conventions: a line for the header infiniband/gone.h" + lack},
		{"stale parameter", func(in *Input) {
			in.Known.Funcs["ibv_poll_cq"].Nil = []string{"gone"}
		}, ": the line for ibv_poll_cq names a parameter gone" + lack},
		{"stale enum", func(in *Input) {
			in.Known.Enums["gone"] = &conventions.Enum{Key: "gone"}
		}, "conventions: a line for the enum gone" + lack},
		{"stale strings", func(in *Input) {
			in.Strings["gone"] = &conventions.Strings{Enum: "gone"}
		}, "strings.txt: strings for the enum gone" + lack},
		{"stale string", func(in *Input) {
			in.Strings["ibv_port_state"].Text["IBV_PORT_GONE"] = "gone"
		}, "strings.txt: a string for IBV_PORT_GONE of enum ibv_port_state" + lack},
		{"stale manual page", func(in *Input) {
			in.Manual["ibv_gone"] = "ibv_gone(3)"
		}, "manual.txt: a manual page for the function ibv_gone" + lack},
		{"new function without a release", func(in *Input) {
			in.API.Functions = append(in.API.Functions, &api.Function{Name: "ibv_new", Type: &api.Type{Kind: api.Func, Elem: &api.Type{Name: "void"}}})
		}, "no line for func ibv_new, which was added after " + before + ", in " + newest + " at the latest; add a line with the first release that has it, such as: " + release + " func ibv_new"},
		{"function without a convention", func(in *Input) {
			delete(in.Known.Funcs, "ibv_poll_cq")
		}, "package libibverbs: infiniband/verbs.h: func ibv_poll_cq: no line in the conventions"},
		{"enum without a kind", func(in *Input) {
			delete(in.Known.Enums, "ibv_mtu")
		}, "package libibverbs: infiniband/verbs.h: enum ibv_mtu: the conventions have no line for the enum"},
		{"unknown inline", func(in *Input) {
			in.Known.Funcs["ibv_query_port"].Own = false
			for _, f := range in.API.Functions {
				if f.Name == "ibv_query_port" {
					f.Inline = &api.Inline{}
				}
			}
		}, "package libibverbs: infiniband/verbs.h: func ibv_query_port: inline function of a form that is not recognised, and its line at "},
		{"modifier that is gone", func(in *Input) {
			in.Known.Enums["ibv_mtu"].Modifier = "IBV_GONE"
		}, "the line for the enum ibv_mtu names a modifier IBV_GONE" + lack},
		{"two with one name", func(in *Input) {
			in.Known.Enums["ibv_mtu"].GoName = "Context"
		}, "would both be called Context"},
		{"type without a form in Go", func(in *Input) {
			in.API.Structs[0].Members[0].Type = &api.Type{Name: "long double"}
		}, "time.h: member timespec.tv_sec: no Go type for long double"},
		{"hidden struct passed by value", func(in *Input) {
			for _, f := range in.API.Functions {
				if f.Name == "ibv_close_device" {
					f.Type.Params[0] = &api.Type{Name: "struct verbs_ex_private"}
				}
			}
		}, "infiniband/verbs.h: func ibv_close_device: struct verbs_ex_private is passed by value, and its members are not bound"},
		{"variadic function without a form", func(in *Input) {
			in.Known.Funcs["rfcntl"].Forms = nil
		}, "package librdmacm: rdma/rsocket.h: func rfcntl: a variadic function must have forms in the conventions, and no other function may have them"},
		{"form of a function that is not variadic", func(in *Input) {
			in.Known.Funcs["rdma_listen"].Forms = []conventions.Form{{Name: "rdma_listen"}}
		}, "package librdmacm: rdma/rdma_cma.h: func rdma_listen: a variadic function must have forms in the conventions, and no other function may have them"},
		{"form with a bad type", func(in *Input) {
			in.Known.Funcs["rfcntl"].Forms[1].Args[0].Type = "int*"
		}, `package librdmacm: rdma/rsocket.h: func rfcntl: rfcntl_int: type "int*": unexpected "*"`},
		{"two forms with one name", func(in *Input) {
			in.Known.Funcs["rfcntl"].Forms[1].Name = "rfcntl"
		}, "package librdmacm: rdma/rsocket.h: func rfcntl: rfcntl and rfcntl would both be called Rfcntl"},
		{"operation of a class without a refusal", func(in *Input) {
			in.Known.Funcs["ibv_post_send"].Class = conventions.Status
		}, "infiniband/verbs.h: func ibv_post_send: a function of class status cannot report that the object lacks the operation"},
		{"class that does not fit", func(in *Input) {
			in.Known.Funcs["ibv_alloc_pd"].Class = conventions.Code
		}, "infiniband/verbs.h: func ibv_alloc_pd: a function of class code must return a number, but it returns struct ibv_pd *"},
		{"class of a function without a result", func(in *Input) {
			in.Known.Funcs["ibv_free_device_list"].Class = conventions.Status
		}, "infiniband/verbs.h: func ibv_free_device_list: a function of class status must return a number, but it returns void"},
		{"class of a string", func(in *Input) {
			in.Known.Funcs["ibv_alloc_pd"].Class = conventions.String
		}, "infiniband/verbs.h: func ibv_alloc_pd: a function of class string must return char *, but it returns struct ibv_pd *"},
		{"result through what is no pointer", func(in *Input) {
			in.Known.Funcs["ibv_create_cq"].Out = []string{"cqe"}
		}, "infiniband/verbs.h: func ibv_create_cq: the conventions say that C stores something through cqe, which is no pointer to a number or to a pointer"},
		{"result that is a struct", func(in *Input) {
			in.Known.Funcs["ibv_query_device"].Out = []string{"device_attr"}
		}, "func ibv_query_device: the conventions say that C stores something through device_attr, which is no pointer to a number or to a pointer"},
		{"memory that is no const char *", func(in *Input) {
			in.Known.Funcs["ibv_reg_mr"].Bytes = []string{"addr"}
		}, " says bytes=addr, which is void *, not const char *"},
		{"memory that is no parameter", func(in *Input) {
			in.Known.Funcs["ibv_poll_cq"].Bytes = []string{"gone"}
		}, ": the line for ibv_poll_cq names a parameter gone" + lack},
		{"enum that is gone", func(in *Input) {
			in.Known.Funcs["ibv_modify_qp"].Enums = conventions.Enums{"attr_mask": "ibv_gone"}
		}, ": the line for ibv_modify_qp names an enum ibv_gone" + lack},
		{"enum of a parameter that is gone", func(in *Input) {
			in.Known.Funcs["ibv_modify_qp"].Enums = conventions.Enums{"gone": "ibv_mtu"}
		}, ": the line for ibv_modify_qp names a parameter gone" + lack},
		{"enum of a struct", func(in *Input) {
			in.Known.Funcs["ibv_modify_qp"].Enums = conventions.Enums{"attr": "ibv_mtu"}
		}, ": the line for ibv_modify_qp gives attr the type of enum ibv_mtu, but it is struct ibv_qp_attr *, not an integer of 4 bytes"},
		{"enum of another size", func(in *Input) {
			in.Known.Funcs["ibv_query_port"].Enums = conventions.Enums{"port_num": "ibv_mtu"}
		}, ": the line for ibv_query_port gives port_num the type of enum ibv_mtu, but it is uint8_t, not an integer of 4 bytes"},
		{"enum of a number in network byte order", func(in *Input) {
			in.Known.Funcs["ibv_wc_read_imm_data"].Enums = conventions.Enums{conventions.Result: "ibv_mtu"}
		}, ": the line for ibv_wc_read_imm_data gives the result the type of enum ibv_mtu, but it is __be32, not an integer of 4 bytes"},
		{"enum of no result", func(in *Input) {
			in.Known.Funcs["ibv_wr_abort"].Enums = conventions.Enums{conventions.Result: "ibv_mtu"}
		}, ": the line for ibv_wr_abort gives the result the type of enum ibv_mtu, but it is void, not an integer of 4 bytes"},
		{"enum without a type", func(in *Input) {
			in.Known.Funcs["ibv_modify_qp"].Enums = conventions.Enums{"attr_mask": ":IBV_SYSFS_NAME_MAX"}
		}, ": the line for ibv_modify_qp names the enum :IBV_SYSFS_NAME_MAX, which has no type in Go, as its line says name=-"},
		{"enum of a member that is gone", func(in *Input) {
			in.Known.Members["ibv_qp_attr"] = conventions.Enums{"gone": "ibv_mtu"}
		}, ": the line for struct ibv_qp_attr names a member gone" + lack},
		{"enum of a member that is an array", func(in *Input) {
			in.Known.Members["ibv_device"] = conventions.Enums{"name": "ibv_mtu"}
		}, ": the line for struct ibv_device gives name the type of enum ibv_mtu, but it is char [64], not an integer of 4 bytes"},
		{"enum of a bit-field", func(in *Input) {
			in.API.Structs[0].Members[0].Bits = &api.Bits{Width: 3}
			_, tag, _ := strings.Cut(in.API.Structs[0].Name, " ")
			in.Known.Members[tag] = conventions.Enums{in.API.Structs[0].Members[0].Name: "ibv_mtu"}
		}, "the type of enum ibv_mtu, but it is a bit-field"},
		{"enum of a struct that is gone", func(in *Input) {
			in.Known.Members["ibv_gone"] = conventions.Enums{"a": "ibv_mtu"}
		}, "conventions: a line for the struct ibv_gone" + lack},
		{"poll without a limit", func(in *Input) {
			in.Known.Funcs["ibv_resize_cq"].Class = conventions.Poll
		}, "infiniband/verbs.h: func ibv_resize_cq: a function of class poll must have a parameter num_entries"},
		{"enum with a tag and without a name", func(in *Input) {
			in.Known.Enums["ibv_mtu"].GoName = "-"
		}, "infiniband/verbs.h: enum ibv_mtu: name=- is for enums without a tag"},
		{"name that cannot be exported", func(in *Input) {
			in.Known.Enums["ibv_mtu"].GoName = "mtu"
		}, `infiniband/verbs.h: enum ibv_mtu: enum ibv_mtu would be called "mtu" in Go, which programs cannot use`},
		{"only in librdmacm", func(in *Input) {
			delete(in.Known.Funcs, "rdma_listen")
		}, "package librdmacm: rdma/rdma_cma.h: func rdma_listen: no line in the conventions"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := load(t)
			tt.change(&in)
			dir := filepath.Join(t.TempDir(), "generated")
			require.ErrorContains(t, Emit(in, dir), tt.want)
			require.NoDirExists(t, filepath.Join(dir, "libibverbs"))
		})
	}
}

// TestStrings has a const char * as a string, as memory with a length, and as
// memory that C keeps. A string lives only for the call.
func TestStrings(t *testing.T) {
	for want, change := range map[string]func(*conventions.Func){
		"func Getaddrinfo(node string, service string, hints *Addrinfo)": func(*conventions.Func) {},
		"func Getaddrinfo(node *byte, service string, hints *Addrinfo)":  func(f *conventions.Func) { f.Bytes = []string{"node"} },
		"func Getaddrinfo(node string, service *byte, hints *Addrinfo)":  func(f *conventions.Func) { f.Keeps = []string{"service"} },
	} {
		in := load(t)
		change(in.Known.Funcs["rdma_getaddrinfo"])
		all, err := packages(in)
		require.NoError(t, err)
		files, err := all[1].render()
		require.NoError(t, err)
		for _, name := range []string{"stubs_cgo.go", "stubs_other.go"} {
			require.Contains(t, string(files[name]), want+" (*Addrinfo, error) {\n")
		}
		refusal := "\tif strings.IndexByte(node, 0) >= 0 {\n\t\treturn nil, cerr.ZeroByte(\"rdma_getaddrinfo\", \"node\")\n\t}\n"
		require.Equal(t, strings.Contains(want, "node string"), strings.Contains(string(files["stubs_cgo.go"]), refusal))
	}
}

// TestEnumTypes has integers to which the conventions give the types of enums:
// parameters, results, out parameters, and members of structs and unions, with
// enums of this package and of libibverbs.
func TestEnumTypes(t *testing.T) {
	in := load(t)
	in.Known.Funcs["ibv_get_device_index"].Enums = conventions.Enums{conventions.Result: ":IBV_LINK_LAYER_UNSPECIFIED"}
	in.Known.Members["ibv_async_event"] = conventions.Enums{"element.port_num": "ibv_mtu"}
	in.Known.Members["rdma_cm_event"] = conventions.Enums{"status": "ibv_wc_status"}
	in.Known.Members["rdma_ud_param"] = conventions.Enums{"qkey": "rdma_port_space"}
	files := rendered(t, in)
	for _, tt := range []struct{ pkg, file, want string }{
		{"libibverbs", "stubs_cgo.go", "\nfunc ModifyQp(qp *Qp, attr *QpAttr, attrMask QpAttrMask) error {\n"},
		{"libibverbs", "stubs_other.go", "\nfunc ModifyQp(qp *Qp, attr *QpAttr, attrMask QpAttrMask) error {\n"},
		{"libibverbs", "stubs_cgo.go", "\nfunc GetDeviceIndex(device *Device) (LinkLayer, error) {\n"},
		{"libibverbs", "stubs_cgo.go", "\treturn LinkLayer(r.value), nil\n"},
		{"libibverbs", "stubs.c", "\tint32_t attr_mask = n_0;\n"},
		{"libibverbs", "structs.go", " AccessFlags // qp_access_flags\n"},
		{"libibverbs", "structs.go", "\nfunc (s *AsyncEventElement) PortNum() *Mtu {\n"},
		{"librdmacm", "stubs_cgo.go", "\nfunc InitQpAttr(id *CmId, qpAttr *libibverbs.QpAttr) (libibverbs.QpAttrMask, error) {\n"},
		{"librdmacm", "stubs_cgo.go", "\nfunc SetOption(id *CmId, level OptionLevel, optname int32, optval unsafe.Pointer, optlen uint64) error {\n"},
		{"librdmacm", "structs.go", " libibverbs.WcStatus "},
		{"librdmacm", "structs.go", " PortSpace "},
	} {
		require.True(t, strings.Contains(string(files[tt.pkg][tt.file]), tt.want), "%s/%s lacks %q", tt.pkg, tt.file, tt.want)
	}
	before := load(t)
	for _, f := range before.Known.Funcs {
		f.Enums = nil
	}
	before.Known.Members = nil
	for name, pkg := range rendered(t, before) {
		for file, text := range pkg {
			if strings.HasSuffix(file, ".c") || strings.HasSuffix(file, ".h") || strings.Contains(file, "testdata") || file == "consts.go" || file == "enums.go" {
				require.Equal(t, string(text), string(files[name][file]), "%s/%s: C does not change", name, file)
			}
		}
	}
}

// TestCoverageRefuses shows that what emit refuses is not reported as bound.
func TestCoverageRefuses(t *testing.T) {
	in := load(t)
	delete(in.Known.Enums, "ibv_mtu")
	require.ErrorContains(t, Coverage([]Input{in}, new(bytes.Buffer)), "enum ibv_mtu: the conventions have no line for the enum")
	in.Known.Funcs["ibv_gone"] = &conventions.Func{Name: "ibv_gone"}
	require.ErrorContains(t, Coverage([]Input{in}, new(bytes.Buffer)), "ibv_gone")
}

// TestCoverage proves that docs/proof/coverage.md is what the report says, and
// that nothing is left out without a reason.
func TestCoverage(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, Coverage(loadAll(t), &b))
	golden.Compare(t, filepath.Join(headertest.Top(t), "docs", "proof", "coverage.md"), b.String())
	require.Regexp(t, `(?m)^\| total +\| 622/684 +\| 250/250 \| 2065/2065 +\| 276/278 \| 163/163 +\| 18/18 +\|$`, b.String())
}

// TestCoverageReports shows that what is missing in the generated code, and
// what is left out without a reason, is found.
func TestCoverageReports(t *testing.T) {
	tests := []struct {
		name   string
		change func(*declared)
		want   string
	}{
		{"function", func(d *declared) { delete(d.callable, "PostSend") }, "infiniband/verbs.h: ibv_post_send"},
		{"function elsewhere", func(d *declared) { delete(d.other, "PostSend") }, "infiniband/verbs.h: ibv_post_send"},
		{"enum", func(d *declared) { delete(d.types, "Mtu") }, "infiniband/verbs.h: enum ibv_mtu"},
		{"enumerator", func(d *declared) { delete(d.consts, "IBV_MTU_256") }, "infiniband/verbs.h: IBV_MTU_256"},
		{"struct", func(d *declared) { delete(d.types, "QpCap") }, "infiniband/verbs.h: struct ibv_qp_cap"},
		{"member", func(d *declared) { delete(d.members, "QpCap.MaxSge") }, ""},
		{"member that is missing", func(d *declared) { delete(d.members, "QpCap.MaxSendSge") }, "infiniband/verbs.h: struct ibv_qp_cap"},
		{"view of a union", func(d *declared) { delete(d.members, "Gid.Raw") }, "infiniband/verbs.h: union ibv_gid"},
		{"member of a nested struct", func(d *declared) { delete(d.members, "SendWrWrRdma.Rkey") }, "infiniband/verbs.h: struct ibv_send_wr"},
		{"constant", func(d *declared) { delete(d.consts, "ETHERNET_LL_SIZE") }, "infiniband/verbs.h: ETHERNET_LL_SIZE"},
		{"alias", func(d *declared) { delete(d.types, "AdviseMrAdvice") }, "infiniband/verbs_api.h: ibv_advise_mr_advice"},
	}
	all, err := packages(load(t))
	require.NoError(t, err)
	files, err := all[0].render()
	require.NoError(t, err)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d, err := readDeclared(files)
			require.NoError(t, err)
			tt.change(d)
			r := &report{shares: map[string]*[kinds]share{}}
			all[0].cover(r, d)
			if tt.want == "" {
				require.NoError(t, r.unexplained())
				return
			}
			require.EqualError(t, r.unexplained(), tt.want+" is neither bound nor explained")
		})
	}
}

// TestCoverageNamesHeaders has each header of the packages in one of the
// tables.
func TestCoverageNamesHeaders(t *testing.T) {
	in := load(t)
	var b bytes.Buffer
	require.NoError(t, Coverage([]Input{in}, &b))
	require.NotEmpty(t, in.API.Headers)
	for _, h := range in.API.Headers {
		require.Regexp(t, `(?m)^\| `+regexp.QuoteMeta(h.Name)+` +\|`, b.String())
	}
	in.API.Headers = append(in.API.Headers, &api.Header{Name: "infiniband/new.h"})
	require.EqualError(t, Coverage([]Input{in}, new(bytes.Buffer)), "infiniband/new.h: the header is neither bound nor explained")
}

// TestCoverageFindsReasonsMissing has macros, which are never bound.
func TestCoverageFindsReasonsMissing(t *testing.T) {
	in := load(t)
	in.API.Unvalued = append(in.API.Unvalued, &api.Unvalued{Name: "ibv_new", Header: "infiniband/verbs.h"})
	require.EqualError(t, Coverage([]Input{in}, new(bytes.Buffer)), "infiniband/verbs.h: ibv_new is neither bound nor explained")
}

func TestNames(t *testing.T) {
	p := &pkg{library: &conventions.Library{Prefixes: []string{"ibv_", "verbs_"}}}
	p.Known = &conventions.Table{Names: map[string]string{"struct ibv_x": "Other", "func ibv_y": "Another"}}
	for c, want := range map[string]string{
		"ibv_qp_init_attr_ex": "QpInitAttrEx", "ibv_wc": "Wc", "_ibv_query_gid_ex": "QueryGidEx", "verbs_context": "Context", "rdma_cm_id": "RdmaCmId", "ibv_x": "Other", "ibv_y": "Y",
	} {
		require.Equal(t, want, p.typeName(c))
	}
	require.Equal(t, "Another", p.funcName("ibv_y"))
	for c, want := range map[string]string{"IBV_X": "IBV_X", "__IBV_MAX": "IBV_MAX__", "ibv_lower": "IbvLower", "_ibv_lower": "IbvLower_"} {
		require.Equal(t, want, enumeratorName(c))
	}
	for c, want := range map[string]string{
		"qp": "qp", "num_entries": "numEntries", "type": "typ", "r": "r", "len": "len", "_": "arg", "_2": "arg2", "range": "range_",
	} {
		require.Equal(t, want, local(c))
	}
}

func BenchmarkEmit(b *testing.B) {
	for b.Loop() {
		require.NoError(b, Emit(load(b), b.TempDir()))
	}
}
