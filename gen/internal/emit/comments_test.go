// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"go/doc/comment"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
)

// rendered returns the files of both packages by package and name.
func rendered(t *testing.T, in Input) map[string]map[string][]byte {
	t.Helper()
	all, err := packages(in)
	require.NoError(t, err)
	files := map[string]map[string][]byte{}
	for _, p := range all {
		files[p.name], err = p.render()
		require.NoError(t, err)
	}
	return files
}

// TestDoc has the comments of functions of every kind.
func TestDoc(t *testing.T) {
	tests := []struct{ function, want string }{
		{"ibv_reg_mr_ex", `RegMrEx binds ibv_reg_mr_ex, a function of infiniband/verbs.h:

	struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *mr_init_attr)

It returns C's pointer, and fails if that is NULL, with the errno that C set.
It does not block.

Since rdma-core 59 (IBVERBS_1.15). See ibv_reg_mr(3).`},
		{"ibv_reg_mr", `RegMr binds ibv_reg_mr, a function and a macro of infiniband/verbs.h:

	struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)

It returns C's pointer, and fails if that is NULL, with the errno that C set.
It does not block.
May be nil: addr.
C keeps: addr.

In every supported rdma-core (IBVERBS_1.1). See ibv_reg_mr(3).`},
		{"ibv_wr_atomic_write", `WrAtomicWrite binds ibv_wr_atomic_write, inline in infiniband/verbs.h:

	void ibv_wr_atomic_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, const void *atomic_wr)

C returns nothing: what goes wrong inside is not reported.
The provider does it; the errno is EOPNOTSUPP if it cannot.
An older library without the operation is not noticed: call this only for an object that was created with the operation.
It does not block.

Since rdma-core 44.`},
		{"ibv_query_comp_cntr_caps", `QueryCompCntrCaps binds ibv_query_comp_cntr_caps, inline in infiniband/verbs.h:

	int ibv_query_comp_cntr_caps(struct ibv_context *context, struct ibv_comp_cntr_caps *caps)

It fails if C returns another number than 0, which is the errno.
It does not block.

Since rdma-core 65. See ibv_query_comp_cntr_caps(3).`},
		{"rdma_getaddrinfo", `Getaddrinfo binds rdma_getaddrinfo, a function of rdma/rdma_cma.h:

	int rdma_getaddrinfo(const char *node, const char *service, const struct rdma_addrinfo *hints, struct rdma_addrinfo **res)

It fails if C returns an EAI code, or -1 with an errno.
It returns *res.
It can block.
May be nil: hints.
Empty stands for NULL: node, service.

In every supported rdma-core (RDMACM_1.0). See rdma_getaddrinfo(3).`},
		{"rdma_get_devices", `GetDevices binds rdma_get_devices, a function of rdma/rdma_cma.h:

	struct ibv_context **rdma_get_devices(int *num_devices)

It returns C's pointer, and fails if that is NULL, with the errno that C set.
It also returns *num_devices.
It does not block.

In every supported rdma-core (RDMACM_1.0). See rdma_get_devices(3).`},
	}
	all, err := packages(load(t))
	require.NoError(t, err)
	found := map[string]string{}
	for _, p := range all {
		for _, f := range p.functions {
			found[f.Name()] = p.doc(f)
		}
	}
	for _, tt := range tests {
		require.Equal(t, tt.want, found[tt.function])
	}
	for name, doc := range found { // as go doc reads it: two paragraphs around a prototype, at least
		blocks := new(comment.Parser).Parse(doc).Content
		require.GreaterOrEqual(t, len(blocks), 3, name)
		require.IsType(t, &comment.Code{}, blocks[1], name)
	}
}

// TestSince has declarations that came late, as the bindings comment on them.
func TestSince(t *testing.T) {
	files := rendered(t, load(t))
	for _, tt := range []struct{ pkg, file, want string }{
		{"libibverbs", "structs.go", "// MrInitAttr is struct ibv_mr_init_attr in infiniband/verbs.h: 72 bytes. Since rdma-core 59.\n"},
		{"libibverbs", "structs.go", "Dmah     *Dmah  // dmah\n"}, // as old as its struct
		{"libibverbs", "structs.go", "Buf      *Buf   // buf, since rdma-core 64\n"},
		{"libibverbs", "structs.go", "// Buf is struct ibv_buf, which only the library can look into. Since rdma-core 64.\n"},
		{"libibverbs", "structs.go", "// Qp is struct ibv_qp in infiniband/verbs.h: 160 bytes.\n"},
		{"librdmacm", "structs.go", "// Arg returns the union's member arg. Since rdma-core 60.\n"},
		{"librdmacm", "structs.go", "// Conn returns the union's member conn.\n"},
		{"libibverbs", "enums.go", "// ForkStatus is enum ibv_fork_status in infiniband/verbs.h: one value. Since rdma-core 35.\n"},
		{"libibverbs", "enums.go", "IBV_FORK_ENABLED  ForkStatus = 1\n"}, // as old as its enum
		{"libibverbs", "enums.go", "IBV_WR_FLUSH                WrOpcode = 14 // since rdma-core 45\n"},
		{"librdmacm", "consts.go", "// rdma/rdma_cma.h, since rdma-core 60\n"},
		{"libibverbs", "stubs_cgo.go", "\"ibv_reg_mr_ex\":              {Release: \"59\", Node: \"IBVERBS_1.15\"},\n"},
		{"librdmacm", "stubs_cgo.go", "\"repoll_create\":         {Release: \"65\", Node: \"RDMACM_1.5\"},\n"},
		{"libibverbs", "doc.go", "is in 33.2 already, the oldest that is\n"},
	} {
		require.True(t, strings.Contains(string(files[tt.pkg][tt.file]), tt.want), "%s/%s has no %q", tt.pkg, tt.file, tt.want)
	}
}

// TestSinceOfLooseNames has what came late of kinds of which nothing did yet.
func TestSinceOfLooseNames(t *testing.T) {
	in := load(t)
	newest := in.API
	newest.Aliases = append(newest.Aliases, &api.Alias{Name: "ibv_other_mtu", Header: "infiniband/verbs.h", Target: "ibv_mtu"})
	for _, e := range newest.Enums {
		if e.Key() == ":IBV_WC_IP_CSUM_OK_SHIFT" {
			e.Values = append(e.Values, api.Enumerator{Name: "IBV_LOOSE", Value: 7})
		}
	}
	table := readFacts(t, "since.txt") + "64 alias ibv_other_mtu\n63 enumerator IBV_LOOSE\n"
	in.Since = parseSince(t, table)
	text := string(rendered(t, in)["libibverbs"]["enums.go"])
	require.Contains(t, text, "// OtherMtu is enum ibv_other_mtu, another name of ibv_mtu. Since rdma-core 64.\n")
	require.Regexp(t, `IBV_LOOSE += 7 // since rdma-core 63\n`, text)
}

// TestSinceIsComplete removes each line of since.txt; each is missed.
func TestSinceIsComplete(t *testing.T) {
	in := load(t)
	table := readFacts(t, "since.txt")
	removed := 0
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, "#") || line == "\n" {
			continue
		}
		_, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		err := parseSince(t, strings.Replace(table, line, "\n", 1)).Check(in.Snapshots)
		require.ErrorContains(t, err, "since.txt: no line for "+name+", which was added after ")
		removed++
	}
	require.Equal(t, 179, removed)
}

// TestSinceAlone has two versions of headers that are not rdma-core's. What is
// new says so, with the name of their own project.
func TestSinceAlone(t *testing.T) {
	const header = `"header": "x.h"`
	snapshot := func(text string) *api.API {
		a, err := api.Parse([]byte(text))
		require.NoError(t, err)
		return a
	}
	known, err := conventions.Parse("c", []byte("library libx libx.so.1 prefix=x_ debian=x fedora=x program=-\nheader x.h libx\n"+
		"func x_f code\nfunc x_g code\nenum x_old values\nenum x_new values\nenum :X_LOOSE values name=-\n"))
	require.NoError(t, err)
	older := snapshot(`{"version": "1.0", "headers": [{"name": "x.h", "included": true}],
		"functions": [{"name": "x_f", ` + header + `, "type": "func() int", "node": "X_1"}],
		"enums": [{"name": "x_old", ` + header + `, "values": [{"name": "X_ONE", "value": 1}]}]}`)
	newer := snapshot(`{"version": "2.0", "headers": [{"name": "x.h", "included": true}],
		"functions": [{"name": "x_f", ` + header + `, "type": "func() int", "node": "X_1"},
			{"name": "x_g", ` + header + `, "type": "func(*struct x_hidden) int", "params": ["h"], "node": "X_2"}],
		"enums": [{"name": "x_old", ` + header + `, "values": [{"name": "X_ONE", "value": 1}, {"name": "X_TWO", "value": 2}]},
			{"name": "x_new", ` + header + `, "values": [{"name": "X_THREE", "value": 3}]},
			{` + header + `, "values": [{"name": "X_LOOSE", "value": 4}]}],
		"structs": [{"name": "struct x_s", ` + header + `, "size": 4, "align": 4, "members": [{"name": "a", "type": "int"}]}],
		"macros": [{"name": "X_M", ` + header + `, "type": "int", "value": 5}],
		"aliases": [{"name": "x_other", ` + header + `, "target": "x_s"}],
		"typedefs": [{"name": "x_number", ` + header + `, "type": "int"}],
		"variables": [{"name": "x_level", ` + header + `, "type": "int", "node": "X_2"}]}`)
	in := Input{
		API: newer, Snapshots: []*api.API{older, newer}, Known: known, Alone: true,
		Since: parseSince(t, "2 func x_g\n2 enumerator X_TWO\n2 enum x_new\n2 enumerator X_THREE\n2 enum :X_LOOSE\n2 enumerator X_LOOSE\n"+
			"2 struct x_s\n2 member x_s.a\n2 macro X_M\n2 alias x_other\n2 typedef x_number\n2 variable x_level\n"),
	}
	require.NoError(t, stale(in))
	files := rendered(t, in)["libx"]
	for _, tt := range []struct{ file, want string }{
		{"stubs_cgo.go", "// In every supported libx (X_1).\n"},
		{"stubs_cgo.go", "// Since libx 2 (X_2).\nfunc G("},
		{"stubs_cgo.go", "// Since libx 2 (X_2).\nfunc Level("},
		{"stubs_cgo.go", "\"x_g\":     {Node: \"X_2\"},\n"},
		{"stubs_cgo.go", "\"x_level\": {Node: \"X_2\"},\n"},
		{"enums.go", "X_TWO Old = 2 // since libx 2\n"},
		{"enums.go", "// New is enum x_new in x.h: one value. Since libx 2.\n"},
		{"enums.go", "// Constants of x.h. Since libx 2.\nconst (\n\tX_LOOSE = 4\n"},
		{"enums.go", "// Other is struct x_other, another name of x_s. Since libx 2.\n"},
		{"enums.go", "// Number is the typedef x_number, which stands for int. Since libx 2.\n"},
		{"structs.go", "// S is struct x_s in x.h: 4 bytes. Since libx 2.\n"},
		{"consts.go", "// x.h, since libx 2\n"},
		{"doc.go", "// \"Since libx N\" is the first release"},
	} {
		require.Contains(t, string(files[tt.file]), tt.want)
	}
	for name, text := range files {
		require.NotContains(t, string(text), "rdma-core", name)
	}

	in.Known.Funcs["x_gone"] = &conventions.Func{Name: "x_gone"}
	in.Known.Funcs["x_level"] = &conventions.Func{Name: "x_level"}
	err = stale(in)
	require.ErrorContains(t, err, "a line for the function x_gone, which the headers of libx 2.0 do not have")
	require.ErrorContains(t, err, "a line for the function x_level, which is a variable in the headers of libx 2.0: remove or change the line")
}
