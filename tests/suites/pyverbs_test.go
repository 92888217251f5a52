// SPDX-License-Identifier: Apache-2.0

//go:build linux

package suites

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/golden"
	"github.com/verbena-go/verbena/internal/testutil/process"
)

const (
	pyverbsVersion = "65.0"
	document       = "../../docs/softroce-suites.md"
	begin, end     = "<!-- Written by make suites. -->", "<!-- End of what make suites writes. -->"
)

// result is what became of a test.
type result struct {
	Test, Outcome, Reason string
}

// module is the file that the test is in, and name what comes after it.
func (r result) module() string { return strings.Split(r.Test, ".")[1] }

func (r result) name() string { return r.Test[strings.LastIndexByte(r.Test, '.')+1:] }

// reasons are why tests do not pass: what is in the document, and the tests by
// their names or by what they say. A test that fails, and does not say itself
// that it does not apply, says what the reason names.
var reasons = []struct {
	failed              bool
	reason, tests, says string
}{
	{true, "passes itself to another process, for which Python 3.14 cannot serialize it", `\.test_multi_process_alloc_dm$`, `cannot pickle`},

	{false, "for cards with the driver mlx5", `^tests\.test_mlx5_`, ``},
	{false, "for cards with the driver efa", `^tests\.test_efa`, ``},
	{false, "needs a graphics card, whose memory it takes as a DMA buffer", `^tests\.test_cuda_dmabuf|\.DmaBuf`, ``},
	{false, "needs huge pages, of which the machine has reserved none", ``, `^There are no huge pages`},
	{false, "the device's memory is no DMA buffer", ``, `^DM dmabuf export is not supported`},
	{false, "the device has no raw packets, and so no flow steering", ``, `^Create QP type 8|^Create Raw Packet QP`},
	{false, "the device does not share memory with a hypervisor", ``, `^CC PD is not supported|CC_DMA_BOUNCE`},
	{false, "the device has no clock of the system's (PHC)", `^tests\.test_phc_`, ``},
}

// explained returns why a test has not passed, and whether there is a reason.
func explained(r result) (string, bool) {
	for _, n := range reasons {
		if n.failed == (r.Outcome != "skipped") && regexp.MustCompile(n.tests).MatchString(r.Test) && regexp.MustCompile(n.says).MatchString(r.Reason) {
			return n.reason, true
		}
	}
	return "", false
}

// TestPyverbs runs pyverbs' tests, and compares what became of them with the
// document. Whatever does not pass needs a reason for which it does not apply.
func TestPyverbs(t *testing.T) {
	if os.Getenv("VERBENA_SUITES") == "" {
		t.Skip("make suites runs it")
	}
	cache := os.Getenv("VERBENA_CACHE")
	if cache == "" {
		cache = "../../.cache"
	}
	root, err := filepath.Abs(filepath.Join(cache, "suites", "pyverbs-"+pyverbsVersion))
	require.NoError(t, err)
	folder := filepath.Join(root, "usr", "share", "doc", "rdma-core", "tests")
	paths, err := filepath.Glob(filepath.Join(folder, "test_*.py"))
	require.NoError(t, err)
	require.NotEmpty(t, paths, "scripts/fetch-suites brings them")

	libraries := t.TempDir()
	require.Zero(t, process.Run(t, process.Cmd(t, "verbena", "softroce", "libs", libraries)).Wait())
	var all []result
	var cards []string // whose drivers' modules only look at the device
	for _, path := range paths {
		module := strings.TrimSuffix(filepath.Base(path), ".py")
		if strings.HasPrefix(module, "test_mlx5_") || strings.HasPrefix(module, "test_efa") {
			cards = append(cards, module)
			continue
		}
		t.Run(module, func(t *testing.T) { all = append(all, runPyverbs(t, root, folder, libraries, module)...) })
	}
	t.Run("cards", func(t *testing.T) { all = append(all, runPyverbs(t, root, folder, libraries, cards...)...) })
	if t.Failed() {
		return
	}
	golden.ComparePart(t, document, begin, end, tables(all))
}

// runPyverbs runs modules in a process, in a network of its own.
func runPyverbs(t *testing.T, root, folder, libraries string, modules ...string) []result {
	t.Helper()
	here, err := filepath.Abs("testdata")
	require.NoError(t, err)
	path, python := filepath.Join(t.TempDir(), "results"), filepath.Join(here, "python")
	cmd := process.Cmd(t, "verbena", "softroce", "run", "-l", libraries, python, filepath.Join(here, "runner.py"), path, folder)
	cmd.Args = append(cmd.Args, modules...)
	cmd.Env = append(cmd.Env, "VERBENA_SUITE="+root, "VERBENA_SUITE_PYTHON="+python, "VERBENA_DEVICE=soft",
		fmt.Sprintf("VERBENA_NETWORK=suites %d %s", os.Getpid(), modules[0]), "PATH="+filepath.Join(here, "bin")+":"+os.Getenv("PATH"))
	require.Zero(t, process.Run(t, cmd).Wait())

	file, err := os.Open(path)
	require.NoError(t, err, "no test was run")
	defer file.Close()
	var all []result
	lines := bufio.NewScanner(file)
	for lines.Buffer(nil, 1<<20); lines.Scan(); {
		var r result
		require.NoError(t, json.Unmarshal(lines.Bytes(), &r))
		i := slices.IndexFunc(all, func(other result) bool { return other.Test == r.Test })
		switch {
		case i < 0:
			all = append(all, r)
		case all[i].Outcome == "failed": // which a later line does not take back
		default:
			all[i] = r
		}
	}
	require.NoError(t, lines.Err())
	for _, r := range all {
		if _, ok := explained(r); r.Outcome != "passed" && !ok {
			t.Errorf("%s %s, and there is no reason for it:\n%s", r.Test, r.Outcome, r.Reason)
		}
	}
	return all
}

// tables returns what the document says of the results.
func tables(all []result) string {
	type counts struct{ passed, failed, other int }
	var modules []string
	of := map[string]counts{}
	tests := map[string]map[string][]string{} // of a reason and a module
	var sum counts
	for _, r := range all {
		m := r.module()
		if !slices.Contains(modules, m) {
			modules = append(modules, m)
		}
		c := of[m]
		switch r.Outcome {
		case "passed":
			c.passed++
			sum.passed++
		case "skipped":
			c.other++
			sum.other++
		default:
			c.failed++
			sum.failed++
		}
		of[m] = c
		if why, ok := explained(r); ok {
			if tests[why] == nil {
				tests[why] = map[string][]string{}
			}
			tests[why][m] = append(tests[why][m], r.name())
		}
	}
	var b strings.Builder
	b.WriteString("| module | passed | failed | not applicable |\n|---|---|---|---|\n")
	for _, m := range modules {
		fmt.Fprintf(&b, "| %s | %d | %d | %d |\n", m, of[m].passed, of[m].failed, of[m].other)
	}
	fmt.Fprintf(&b, "| together | %d | %d | %d |\n", sum.passed, sum.failed, sum.other)
	for _, failed := range []bool{true, false} {
		b.WriteString(map[bool]string{true: "\nWhy a test fails:\n", false: "\nWhy a test does not apply:\n"}[failed])
		b.WriteString("\n| reason | number | tests |\n|---|---|---|\n")
		for _, n := range reasons {
			if n.failed != failed {
				continue
			}
			count, lists := 0, []string{}
			for _, m := range modules {
				list := tests[n.reason][m]
				if len(list) == 0 {
					continue
				}
				count += len(list)
				what := strings.Join(list, ", ")
				if c := of[m]; len(list) == c.passed+c.failed+c.other {
					what = "all"
				}
				lists = append(lists, m+": "+what)
			}
			if count > 0 {
				fmt.Fprintf(&b, "| %s | %d | %s |\n", n.reason, count, strings.Join(lists, "; "))
			}
		}
	}
	return b.String()
}

// The numbers of the document fit together.
func TestDocument(t *testing.T) {
	page, err := os.ReadFile(document)
	require.NoError(t, err)
	number := func(text string) int {
		n, err := strconv.Atoi(text)
		require.NoError(t, err)
		return n
	}
	var sum, together [3]int // passed, failed, not applicable
	for _, row := range regexp.MustCompile(`(?m)^\| (test_\w+|together) \| (\d+) \| (\d+) \| (\d+) \|$`).FindAllStringSubmatch(string(page), -1) {
		to := &sum
		if row[1] == "together" {
			to = &together
		}
		for i := range to {
			to[i] += number(row[2+i])
		}
	}
	require.NotZero(t, together[0])
	require.Equal(t, together, sum)
	var explained [3]int
	for _, n := range reasons {
		for _, row := range regexp.MustCompile(`(?m)^\| `+regexp.QuoteMeta(n.reason)+` \| (\d+) \|`).FindAllStringSubmatch(string(page), -1) {
			if n.failed {
				explained[1] += number(row[1])
			} else {
				explained[2] += number(row[1])
			}
		}
	}
	require.Equal(t, together[1:], explained[1:])
}
