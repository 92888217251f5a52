// SPDX-License-Identifier: Apache-2.0

//go:build linux

package suites

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/examples/valkey/internal/servertest"
	"github.com/verbena-go/verbena/internal/testutil/golden"
)

func TestMain(m *testing.M) {
	m.Run()
	servertest.CleanUp()
}

const (
	document   = "../README.md"
	begin, end = "<!-- Written by make suites. -->", "<!-- End of what make suites writes. -->"
)

// A suite is the tests of a client that need one server.
type suite struct {
	name, module, pkg string
	file, call        string // where the package dials, and how
	instead           string // how it dials with suiteDial
	run               string // the tests
	specs             bool   // whether one of them is all specs of Ginkgo's
}

// otherServers are specs that need other servers, or modules of Redis, and the
// two that dial port 6379 themselves.
const otherServers = "custom dialers|Dialer connection timeouts|Cluster|cluster races|Sentinel|Ring |TLS|Command Tips|RediSearch|Array Commands|[Tt]imeseries|TS[.]|JSON|Probabilistic|" +
	"FT[.]|HIMPORT|VectorSet|HotKeys|UniversalClient|Failover"

var suites = []suite{
	{
		name: "go-redis", module: "github.com/redis/go-redis/v9", pkg: "redis", file: "options.go",
		call: "netDialer.DialContext(ctx, network, addr)", instead: "suiteDial(ctx, netDialer, network, addr)",
		run: "^TestGinkgoSuite$", specs: true,
	},
	{
		name: "valkey-go", module: "github.com/valkey-io/valkey-go", pkg: "valkey", file: "valkey.go",
		call: `opt.Dialer.DialContext(ctx, "tcp", dst)`, instead: `suiteDial(ctx, &opt.Dialer, "tcp", dst)`,
		run: "^(TestSingleClientIntegration|TestNegative.*|TestUnblockOnCancel.*)$",
	},
}

// Outcomes of tests.
const (
	passed  = "passed"
	failed  = "failed"
	leftOut = "left out"
)

// exceptions are specs to leave out over RDMA, and why.
var exceptions = map[string]string{
	"PubSub handles big message payload":       "PUBLISH on one connection may be served before SUBSCRIBE on another",
	"races should select DB with read timeout": "Valkey 8.1.1 crashes: it goes on with a connection that it has freed",
}

// result is what became of a test, and what it said.
type result struct{ outcome, says string }

// TestClients runs the suites over TCP and over RDMA, and compares what became
// of each test with testdata, and how many passed with the document. What
// passes over TCP passes over RDMA as well, but for the exceptions.
func TestClients(t *testing.T) {
	if os.Getenv("VERBENA_SUITES") == "" {
		t.Skip("make suites runs it")
	}
	var table strings.Builder
	table.WriteString("| client | tests | passed over TCP | passed over RDMA | left out over RDMA |\n|---|---|---|---|---|\n")
	for _, s := range suites {
		t.Run(s.name, func(t *testing.T) {
			program, folder, version := s.build(t)
			tcp, rdma := s.test(t, program, folder, "TCP"), s.test(t, program, folder, "RDMA")
			var list strings.Builder
			list.WriteString("over TCP, over RDMA: test\n")
			counts := map[string]int{}
			for _, name := range slices.Sorted(maps.Keys(tcp)) {
				over, also := tcp[name], rdma[name]
				if exceptions[name] != "" {
					also.outcome = leftOut
				} else if over.outcome == passed && also.outcome != passed {
					t.Errorf("over RDMA alone: %q %s: %s", name, also.outcome, also.says)
				}
				counts["TCP "+over.outcome]++
				counts["RDMA "+also.outcome]++
				fmt.Fprintf(&list, "%s, %s: %s\n", over.outcome, also.outcome, name)
			}
			fmt.Fprintf(&table, "| %s %s | %d | %d | %d | %d |\n", s.name, version, len(tcp), counts["TCP "+passed], counts["RDMA "+passed], counts["RDMA "+leftOut])
			golden.Compare(t, filepath.Join("testdata", s.name+".txt"), list.String())
		})
	}
	if t.Failed() {
		return
	}
	golden.ComparePart(t, document, begin, end, table.String())
}

// build makes a copy of the module that dials with suiteDial. It returns the
// program of the package's tests, the folder to run it in, and the module's
// version.
func (s suite) build(t *testing.T) (program, folder, version string) {
	t.Helper()
	goCommand := func(args ...string) string {
		cmd := exec.Command("go", args...)
		cmd.Dir = ".."
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		require.NoError(t, err, "%v", cmd)
		return strings.TrimSpace(string(out))
	}
	goCommand("mod", "download", s.module)
	source, version, _ := strings.Cut(goCommand("list", "-m", "-f", "{{.Dir}} {{.Version}}", s.module), " ")
	top := t.TempDir()
	folder = filepath.Join(top, "module")
	require.NoError(t, os.CopyFS(folder, os.DirFS(source)))
	rewrite := func(from, to string, change func(string) string) {
		text, err := os.ReadFile(from)
		require.NoError(t, err)
		_ = os.Remove(to) // it may be read-only
		require.NoError(t, os.WriteFile(to, []byte(change(string(text))), 0o644))
	}
	dials := filepath.Join(folder, s.file)
	rewrite(dials, dials, func(text string) string {
		require.Equal(t, 1, strings.Count(text, s.call), "%s dials in another way", s.module)
		return strings.Replace(text, s.call, s.instead, 1)
	})
	rewrite("testdata/dial.go", filepath.Join(folder, "suite_dial.go"), func(text string) string {
		return strings.Replace(text, "package suites", "package "+s.pkg, 1)
	})
	modules := filepath.Join(top, "suite.mod")
	rewrite("../go.mod", modules, func(text string) string { return text + "replace " + s.module + " => " + folder + "\n" })
	rewrite("../go.sum", filepath.Join(top, "suite.sum"), func(text string) string { return text })
	program = filepath.Join(top, "suite.test")
	goCommand("test", "-c", "-vet=off", "-o", program, "-modfile", modules, "-mod=mod", s.module)
	return program, folder, strings.TrimPrefix(version, "v")
}

// test runs the suite with a new server.
func (s suite) test(t *testing.T, program, folder, over string) map[string]result {
	t.Helper()
	server := servertest.Start(t)
	report := filepath.Join(t.TempDir(), "report.json")
	cmd := exec.CommandContext(t.Context(), program, "-test.v", "-test.timeout=30m", "-test.run="+s.run)
	if s.specs {
		skip := otherServers
		if over == "RDMA" {
			for name := range exceptions {
				skip += "|" + regexp.QuoteMeta(name)
			}
		}
		cmd.Args = append(cmd.Args, "-ginkgo.seed=1", "-ginkgo.json-report="+report, "-ginkgo.skip="+skip)
	}
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "VERBENA_SUITE_OVER="+over, "VERBENA_SUITE_SERVER="+server.Address(), "RE_CLUSTER=true", "REDIS_VERSION=7.2")
	out, err := cmd.CombinedOutput()
	got := map[string]result{}
	if !s.specs {
		for _, line := range regexp.MustCompile(`(?m)^--- (PASS|FAIL): (\S+)`).FindAllSubmatch(out, -1) {
			got[string(line[2])] = result{map[string]string{"PASS": passed, "FAIL": failed}[string(line[1])], string(out)}
		}
	} else if text, err := os.ReadFile(report); err == nil {
		var suites []struct {
			SpecReports []struct {
				ContainerHierarchyTexts           []string
				LeafNodeType, LeafNodeText, State string
				Failure                           struct{ Message string }
			}
		}
		require.NoError(t, json.Unmarshal(text, &suites))
		for _, spec := range suites[0].SpecReports {
			name := strings.Join(append(spec.ContainerHierarchyTexts, spec.LeafNodeText), " ")
			if spec.LeafNodeType != "It" || spec.State == "skipped" || spec.State == "pending" || got[name].outcome == failed {
				continue
			}
			got[name] = result{failed, spec.State + ": " + spec.Failure.Message}
			if spec.State == passed {
				got[name] = result{outcome: passed}
			}
		}
	}
	require.NotEmpty(t, got, "%v:\n%s", err, out)
	return got
}
