// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
	"github.com/verbena-go/verbena/gen/internal/headertest"
)

// scanFiles scans verbs.h with other files beside it. lines are added to the
// conventions. Paths in errors start at the include folder.
func scanFiles(t *testing.T, files map[string]string, lines string, draft bool) (*api.API, error) {
	t.Helper()
	dir := t.TempDir()
	all := map[string]string{"umbrella.h": "#include <infiniband/verbs.h>\n", "infiniband/verbs.h": "int ibv_plain(void);\n"}
	maps.Copy(all, files)
	for name, text := range all {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	known, err := conventions.Parse("c.txt", []byte("header infiniband/verbs.h libibverbs\nfunc ibv_plain code\n"+lines))
	require.NoError(t, err)
	out, err := Scan(Options{
		Headers: dir, Shim: filepath.Join(headertest.Top(t), "headers", "shim"),
		Source: filepath.Join(dir, "umbrella.h"), Version: "test", Known: known, Draft: draft, Absent: draft,
	})
	if err != nil {
		return nil, errorWithout(dir, err)
	}
	return out, nil
}

// TestHeaders has headers beside verbs.h: each is bound, explained or an error,
// however it is included. What is bound is all that newer declares: a function,
// an enum, a macro and a struct.
func TestHeaders(t *testing.T) {
	const newer = "#pragma once\nint ibv_new(int n);\n#pragma once\nenum ibv_new_kind { IBV_NEW };\n#define IBV_NEWER 7\nstruct ibv_newer { int a; };\n"
	const lines = "func ibv_new code\nenum ibv_new_kind values\n"
	verbs := func(include string) string { return "#include " + include + "\nint ibv_plain(void);\n" }
	unknown := func(name string) string {
		return name + ":1:1: the header " + name + " is included and neither bound nor explained; " +
			"add to the conventions a line such as: header " + name + " libibverbs"
	}
	tests := []struct {
		name  string
		files map[string]string
		lines string // for the conventions, with which newer is bound
		want  string // the error without them
	}{
		{
			"by verbs.h",
			map[string]string{"infiniband/verbs.h": verbs("<infiniband/new.h>"), "infiniband/new.h": newer},
			"header infiniband/new.h libibverbs\n", unknown("infiniband/new.h"),
		},
		{
			"by the umbrella",
			map[string]string{"umbrella.h": "#include <infiniband/verbs.h>\n#include <infiniband/new.h>\n", "infiniband/new.h": newer},
			"header infiniband/new.h libibverbs\n", unknown("infiniband/new.h"),
		},
		{
			"in quotes",
			map[string]string{"infiniband/verbs.h": verbs(`"new.h"`), "infiniband/new.h": newer},
			"header infiniband/new.h libibverbs\n", unknown("infiniband/new.h"),
		},
		{
			"in the other folder",
			map[string]string{"infiniband/verbs.h": verbs(`"../rdma/new.h"`), "rdma/new.h": newer},
			"header rdma/new.h libibverbs\n", unknown("rdma/new.h"),
		},
		{
			"twice, by two names",
			map[string]string{"infiniband/verbs.h": verbs(`"../rdma/new.h"`) + "#include <rdma/new.h>\n", "rdma/new.h": newer},
			"header rdma/new.h libibverbs\n", unknown("rdma/new.h"),
		},
		{
			"in a folder of its own",
			map[string]string{"infiniband/verbs.h": verbs("<util/new.h>"), "util/new.h": newer},
			"header util/new.h libibverbs\n", unknown("util/new.h"),
		},
		{
			"through one that is skipped",
			map[string]string{"infiniband/verbs.h": verbs("<infiniband/old.h>"), "infiniband/old.h": verbs("<infiniband/sub/new.h>"), "infiniband/sub/new.h": newer},
			"header infiniband/old.h skip=why\nheader infiniband/sub/new.h libibverbs\n", unknown("infiniband/old.h") + "\n" + unknown("infiniband/sub/new.h"),
		},
		{
			"in a circle",
			map[string]string{"infiniband/verbs.h": "#pragma once\n" + verbs("<infiniband/new.h>"), "infiniband/new.h": newer + "#include <infiniband/verbs.h>\n"},
			"header infiniband/new.h libibverbs\n", unknown("infiniband/new.h"),
		},
		{
			"on a condition that holds",
			map[string]string{"infiniband/verbs.h": "#ifdef __linux__\n#include <infiniband/new.h>\n#endif\nint ibv_plain(void);\n", "infiniband/new.h": newer},
			"header infiniband/new.h libibverbs\n", unknown("infiniband/new.h"),
		},
		{
			"by a name that a macro gives",
			map[string]string{"infiniband/verbs.h": "#define NEW <infiniband/new.h>\n#include NEW\n#undef NEW\nint ibv_plain(void);\n", "infiniband/new.h": newer},
			"header infiniband/new.h libibverbs\n", unknown("infiniband/new.h"),
		},
		{
			"if it is there",
			map[string]string{
				"umbrella.h":       "#include <infiniband/verbs.h>\n#if __has_include(<infiniband/new.h>)\n#include <infiniband/new.h>\n#endif\n",
				"infiniband/new.h": newer,
			},
			"header infiniband/new.h libibverbs\n", unknown("infiniband/new.h"),
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := scanFiles(t, tt.files, "", false)
			require.EqualError(t, err, tt.want)
			bound, err := scanFiles(t, tt.files, tt.lines+lines, false)
			require.NoError(t, err)
			draft, err := scanFiles(t, tt.files, "", true)
			require.NoError(t, err)
			for _, a := range []*api.API{bound, draft} {
				require.Len(t, a.Functions, 2)
				require.Len(t, a.Enums, 1)
				require.Len(t, a.Macros, 1)
				require.Len(t, a.Structs, 1)
			}
		})
	}
}

// TestHeadersNotIncluded has headers that nothing includes, and that a line is
// about.
func TestHeadersNotIncluded(t *testing.T) {
	files := map[string]string{
		"infiniband/verbs.h":    "#ifdef __sparc__\n#include <infiniband/new.h>\n#endif\n#include <infiniband/used.h>\nstruct ibv_s { struct used u; };\nint ibv_plain(void);\n",
		"infiniband/new.h":      "int ibv_new(void);\n",
		"infiniband/used.h":     "struct used { int a; };\nstruct unused { int b : 3; };\nint used_call(int);\n",
		"rdma/deep/hns-abi.h":   "int hns;\n",
		"elsewhere/unrelated.h": "int unrelated;\n",
	}
	_, err := scanFiles(t, files, "header infiniband/used.h skip=why\nheader rdma/*-abi.h other=linux\n", false)
	require.EqualError(t, err, "infiniband/new.h:1:1: the header infiniband/new.h is neither bound nor explained; "+
		"add to the conventions a line such as: header infiniband/new.h skip=\"why\"\n"+
		"rdma/deep/hns-abi.h:1:1: the header rdma/deep/hns-abi.h is neither bound nor explained; "+
		"add to the conventions a line such as: header rdma/deep/hns-abi.h skip=\"why\"")
	const lines = "header infiniband/used.h skip=why\nheader rdma/deep/*-abi.h other=linux\n"
	_, err = scanFiles(t, files, lines+"header infiniband/new.h libibverbs\n", false)
	require.EqualError(t, err, "infiniband/new.h:1:1: the conventions bind the header infiniband/new.h, but neither the umbrella file nor a header that it includes includes it")

	a, err := scanFiles(t, files, lines+"header infiniband/new.h skip=why\n", false)
	require.NoError(t, err)
	require.Equal(t, []*api.Header{{Name: "infiniband/new.h"}, {Name: "infiniband/used.h", Included: true}, {Name: "infiniband/verbs.h", Included: true}}, a.Headers)
	require.Len(t, a.Functions, 1)
	require.Len(t, a.Structs, 2, "what is held by value is recorded")
}

// TestIncludedWithoutEnd has headers that include each other without a guard.
func TestIncludedWithoutEnd(t *testing.T) {
	_, err := scanFiles(t, map[string]string{
		"infiniband/verbs.h": "#include <infiniband/new.h>\n", "infiniband/new.h": "#include <infiniband/verbs.h>\n",
	}, "", false)
	require.Error(t, err)
	require.Regexp(t, `^infiniband/(verbs|new)\.h:1:\d+: `, err.Error())
	require.Equal(t, 0, strings.Count(err.Error(), "\n"))
}

// TestPackAcrossHeaders has a header that packs what another declares.
func TestPackAcrossHeaders(t *testing.T) {
	files := map[string]string{
		"infiniband/verbs.h": "#pragma pack(push, 1)\n#include <infiniband/new.h>\n#pragma pack(pop)\nint ibv_plain(void);\n",
		"infiniband/new.h":   "struct s { char a; int b; };\n",
	}
	_, err := scanFiles(t, files, "header infiniband/new.h libibverbs\n", false)
	require.ErrorContains(t, err, "infiniband/verbs.h:1:9: #pragma pack is in effect here where ")
	files["infiniband/verbs.h"] = "#include <infiniband/new.h>\nint ibv_plain(void);\n"
	files["infiniband/new.h"] = "#pragma pack(1)\nstruct s { char a; int b; };\n"
	_, err = scanFiles(t, files, "header infiniband/new.h libibverbs\n", false)
	require.EqualError(t, err, "infiniband/new.h:1:9: #pragma pack is in effect at the end of the header")
}
