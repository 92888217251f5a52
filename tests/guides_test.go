// SPDX-License-Identifier: Apache-2.0

//go:build unix

package tests

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/process"
)

// block is a fenced block of a page.
type block struct {
	line     int    // of the page, where the text begins
	language string // the word behind the fence
	how      string // what follows it
	text     string
	before   string // the paragraph before it
}

// blocks returns the fenced blocks of a page. A block that is indented, as in a
// list, loses that.
func blocks(page string) []block {
	var all []block
	var open *block
	var indent, paragraph string
	for i, line := range strings.Split(page, "\n") {
		text := strings.TrimLeft(line, " ")
		switch {
		case open == nil && strings.HasPrefix(text, "```"):
			indent = line[:len(line)-len(text)]
			language, how, _ := strings.Cut(strings.TrimPrefix(text, "```"), " ")
			open = &block{line: i + 2, language: language, how: how, before: strings.Join(strings.Fields(paragraph), " ")}
		case open != nil && text == "```":
			all = append(all, *open)
			open, paragraph = nil, ""
		case open != nil:
			open.text += strings.TrimPrefix(line, indent) + "\n"
		case text == "":
			// The next paragraph begins with the first line that follows.
			if paragraph != "" && !strings.HasSuffix(paragraph, "\n\n") {
				paragraph += "\n"
			}
		case strings.HasSuffix(paragraph, "\n\n"):
			paragraph = line + "\n"
		default:
			paragraph += line + "\n"
		}
	}
	return all
}

// guides returns the pages whose blocks the tests run: the guides, and README.
func guides(t *testing.T) map[string]string {
	t.Helper()
	pages := map[string]string{}
	for page, text := range documents(t) {
		if strings.HasPrefix(page, "guide/") {
			pages[strings.TrimPrefix(page, "guide/")] = text
		}
	}
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	pages["top"] = string(readme)
	require.Greater(t, len(pages), 10)
	return pages
}

// notRun is how a guide says that the tests do not run a block, for its readers
// as well.
var notRun = regexp.MustCompile(`\(not run by the tests: [^)]+\)`)

// Every block of a guide is of a kind that the tests run, or that is not run,
// or the text before it says why they do not.
func TestGuidesSayWhatIsNotRun(t *testing.T) {
	for page, text := range guides(t) {
		for _, b := range blocks(text) {
			at := fmt.Sprintf("%s:%d", page, b.line)
			switch b.language {
			case "sh", "console", "go":
				require.Contains(t, []string{"", "background"}, b.how, at)
			case "text", "mermaid":
			case "yaml", "dockerfile":
				require.Regexp(t, notRun, b.before, at)
			default:
				require.Fail(t, "no such kind of block", "%s: %q", at, b.language)
			}
		}
		require.NotRegexp(t, `(?m)^( {4}|\t)(go|VERBENA|sudo|make|rdma|docker|export)\b`, fenced.ReplaceAllString(text, ""), page)
	}
}

// session is a shell that runs the blocks of a page.
type session struct {
	script strings.Builder
	wants  map[string]string // the output that the page shows, by the file in which it comes out
}

// Before a block that is said to be in another terminal, and ends later, goes
// on, the shell waits for all that the page shows of its output.
const background = `
exec {fd}< <( %s ) # line %d
while IFS= read -t 120 -r line <&$fd; do printf '%%s\n' "$line" >>"$OUT/%d"; [ "$line" != %s ] || break; done
[ "${line:-}" = %[4]s ]
cat <&$fd >>"$OUT/%[3]d" &
`

func (s *session) add(b block) {
	fmt.Fprintf(&s.script, "at=%d\n", b.line)
	commands, output := b.text, ""
	if b.language == "console" {
		commands = ""
		for line := range strings.Lines(b.text) {
			if command, ok := strings.CutPrefix(line, "$ "); ok {
				commands += command
			} else {
				output += line
			}
		}
		s.wants[fmt.Sprint(b.line)] = output
	}
	switch {
	case b.language == "go":
		name := fileName.FindStringSubmatch(b.text)[1]
		fmt.Fprintf(&s.script, "mkdir -p \"$(dirname '%s')\"\ncat >'%[1]s' <<'END OF FILE'\n%sEND OF FILE\n", name, b.text)
	case b.how == "background":
		lines := strings.Split(strings.TrimSpace(output), "\n")
		fmt.Fprintf(&s.script, background, "{ "+strings.TrimSpace(commands)+"; } 2>&1", b.line, b.line, "'"+lines[0]+"'")
	default:
		fmt.Fprintf(&s.script, "{\n%s} >\"$OUT/%d\" 2>&1\n", commands, b.line)
	}
}

// fileName is the comment with which a Go program of a guide begins.
var fileName = regexp.MustCompile(`^// ([\w/]+\.go)\n`)

func runs(b block) bool {
	return (b.language == "sh" || b.language == "console" || b.language == "go" && fileName.MatchString(b.text)) && !notRun.MatchString(b.before)
}

// shows compares output with what a page shows, in which a line of dots is for
// any lines.
func shows(want, got string) bool {
	pattern := regexp.QuoteMeta(strings.TrimSpace(want))
	pattern = regexp.MustCompile(`(?m)^\\\.\\\.\\\.$\n?`).ReplaceAllString(pattern, `(?:.*\n?)*?`)
	return regexp.MustCompile(`^` + pattern + `$`).MatchString(strings.TrimSpace(got))
}

// What the guides say to enter works, in that order and in a folder of its own,
// on the device in user space, and prints what they say.
func TestGuidesRun(t *testing.T) {
	notShort(t, "builds and runs the programs of all guides")
	require.True(t, shows("a\n...\nd", "a\nb\nc\nd\n"))
	require.True(t, shows("a (b)\n...", "a (b)\nc\n"))
	require.False(t, shows("a\nd", "a\nb\nd"))
	top, err := filepath.Abs("..")
	require.NoError(t, err)
	for page, text := range guides(t) {
		s := session{wants: map[string]string{}}
		for _, b := range blocks(text) {
			if runs(b) {
				s.add(b)
			}
		}
		if s.script.Len() == 0 {
			continue
		}
		t.Run(page, func(t *testing.T) { s.run(t, top) })
	}
}

// endsWithTest has all that the shell starts killed when the test's process has
// ended, which holds the other end of the pipe.
const endsWithTest = `
{ read -r -u 3 || kill -KILL -- -$$; } >/dev/null 2>&1 &
disown
exec 3<&-
`

func (s *session) run(t *testing.T, top string) {
	dir := t.TempDir()
	out, bin, home, proxy := filepath.Join(dir, "out"), filepath.Join(dir, "bin"), filepath.Join(dir, "home"), filepath.Join(dir, "proxy")
	versions := filepath.Join(proxy, "github.com/verbena-go/verbena/@v")
	for _, folder := range []string{out, bin, home, versions} {
		require.NoError(t, os.MkdirAll(folder, 0o700))
	}
	mod, err := os.ReadFile("../go.mod")
	require.NoError(t, err)
	for name, text := range map[string]string{"list": "v0.1.0\n", "v0.1.0.info": `{"Version":"v0.1.0"}`, "v0.1.0.mod": string(mod)} {
		require.NoError(t, os.WriteFile(filepath.Join(versions, name), []byte(text), 0o600))
	}
	env, err := exec.Command("go", "env", "GOCACHE", "GOMODCACHE", "GOPROXY").Output()
	require.NoError(t, err)
	of := strings.Split(string(env), "\n")
	tool, err := exec.LookPath("go")
	require.NoError(t, err)

	alive, held, err := os.Pipe()
	require.NoError(t, err)
	defer alive.Close()
	defer held.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c",
		endsWithTest+"exec 9>&2\ntrap 'echo \"the block at line $at failed:\" >&9; tail -n 30 \"$OUT/$at\" >&9' ERR\nunset VERBENA_DEVICE\n"+s.script.String()+"wait\n")
	cmd.ExtraFiles = []*os.File{alive}
	cmd.Dir = home
	cmd.Env = append(os.Environ(), "TOP="+top, "GO="+tool, "BIN="+bin, "OUT="+out, "HOME="+home, "GOBIN="+bin,
		"PATH="+filepath.Join(top, "tests/testdata/guides")+":"+bin+":"+os.Getenv("PATH"),
		"GOCACHE="+of[0], "GOMODCACHE="+of[1], "GOPROXY=file://"+proxy+","+of[2], "GOSUMDB=off", "GOFLAGS=-ldflags=-w", "GOWORK=off", "CGO_ENABLED=1", // without DWARF, to link faster
		"VERBENA_NETWORK="+t.Name(), "VERBENA_CAPTURE=", "VERBENA_HOSTILE=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	said, err := cmd.CombinedOutput()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // whatever it may have left
	require.NoError(t, err, "%s", said)
	for file, want := range s.wants {
		got, err := os.ReadFile(filepath.Join(out, file))
		require.NoError(t, err)
		require.True(t, shows(want, string(got)), "line %s shows\n%s\nand it is\n%s", file, want, got)
	}
}

// What a guide starts does not outlive a test that is killed: it would keep its
// ports.
func TestGuidesEnd(t *testing.T) {
	const variable = "VERBENA_TEST_HELD"
	if held := os.Getenv(variable); held != "" {
		s := session{}
		s.add(block{language: "sh", text: "sleep 600 >'" + held + "'\n"})
		s.run(t, "..")
		return
	}
	held := filepath.Join(t.TempDir(), "held")
	require.NoError(t, syscall.Mkfifo(held, 0o600))
	cmd := exec.Command(process.Self(t), "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), variable+"="+held)
	killed := process.Start(t, cmd)
	var f *os.File
	opened := cmtest.InBackground(func() (err error) {
		f, err = os.Open(held)
		return err
	})
	require.NoError(t, cmtest.Take(t, opened, "the program of the guide"))
	defer f.Close()
	killed.Kill()
	ended := cmtest.InBackground(func() error {
		_, err := io.Copy(io.Discard, f)
		return err
	})
	require.NoError(t, cmtest.Take(t, ended, "the end of what the guide has started"))
}

// packagesOfFragments are what pieces of Go may use without saying so.
var packagesOfFragments = map[string]string{
	"context": "context", "errors": "errors", "fmt": "fmt", "log": "log", "os": "os", "net": "net", "http": "net/http", "testing": "testing", "time": "time",
	"runtime": "runtime", "unsafe": "unsafe", "rand": "math/rand/v2", "syscall": "syscall",
	"fabric": module + "fabric", "ibverbs": module + "ibverbs", "devmem": module + "ibverbs/devmem", "stat": module + "ibverbs/stat", "rdmacm": module + "rdmacm", "rsocket": module + "rsocket", "softroce": module + "softroce",
}

// fragment makes a file of a piece of Go, which is declarations or statements.
func fragment(t *testing.T, at, text string) string {
	t.Helper()
	imports := ""
	for name, path := range packagesOfFragments {
		if regexp.MustCompile(`\b` + name + `\.[A-Z]`).MatchString(text) {
			imports += fmt.Sprintf("import %q\n", path)
		}
	}
	if _, err := parser.ParseFile(token.NewFileSet(), at, "package fragment\n"+text, 0); err == nil {
		return "package fragment\n" + imports + text
	}
	const begin = "package fragment\nfunc _() error {\n"
	file, err := parser.ParseFile(token.NewFileSet(), at, begin+text+"\n}", parser.SkipObjectResolution)
	require.NoError(t, err, at)
	used := "" // what a piece leaves to the lines that follow
	for _, statement := range file.Decls[0].(*ast.FuncDecl).Body.List {
		if define, ok := statement.(*ast.AssignStmt); ok && define.Tok == token.DEFINE {
			for _, name := range define.Lhs {
				if ident, ok := name.(*ast.Ident); ok && ident.Name != "_" {
					used += "_ = " + ident.Name + "\n"
				}
			}
		}
	}
	return "package fragment\n" + imports + "func _() error {\n" + text + "\n" + used + "return nil\n}\n"
}

// The pieces of Go in the guides compile, for programs that import the module.
func TestGuidesCompile(t *testing.T) {
	dir := t.TempDir()
	top, err := filepath.Abs("..")
	require.NoError(t, err)
	names, err := os.ReadFile("testdata/guides/names.go")
	require.NoError(t, err)
	mod := "module example.com/guides\ngo 1.26.0\nrequire github.com/verbena-go/verbena v0.0.0\nreplace github.com/verbena-go/verbena => " + top + "\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte(mod), 0o600))
	pieces := 0
	for page, text := range guides(t) {
		for _, b := range blocks(text) {
			if b.language != "go" || fileName.MatchString(b.text) || notRun.MatchString(b.before) {
				continue
			}
			pieces++
			folder := filepath.Join(dir, fmt.Sprintf("%s_%d", strings.TrimSuffix(page, ".md"), b.line))
			require.NoError(t, os.Mkdir(folder, 0o700))
			file := fragment(t, fmt.Sprintf("%s:%d", page, b.line), b.text)
			require.NoError(t, os.WriteFile(filepath.Join(folder, "fragment.go"), []byte(file), 0o600))
			require.NoError(t, os.WriteFile(filepath.Join(folder, "names.go"), names, 0o600))
		}
	}
	require.Greater(t, pieces, 5)
	cmd := exec.Command("go", "build", "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOSUMDB=off", "GOWORK=off", "CGO_ENABLED=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}
