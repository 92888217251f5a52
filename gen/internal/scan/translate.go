package scan

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"modernc.org/cc/v4"
)

// maxWork bounds what the preprocessor does, in tokens. The headers need less
// than a third.
const maxWork = 300_000

// patience bounds the time, and with it the memory; the headers need a fiftieth.
var patience = 5 * time.Second

// parsed is what came of the headers.
type parsed struct {
	ast *cc.AST
	err error
}

// translate has cc parse and type-check the headers, and does not wait for
// ever: some syntax errors, such as an asterisk before the } of a struct, keep
// cc in a loop, which then goes on until the program ends.
func translate(opts Options, include string) (*cc.AST, error) {
	done := make(chan parsed, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil { // cc panics at what it does not expect
				done <- parsed{nil, gaveUp(opts.Source, fmt.Sprint(p))}
			}
		}()
		ast, err := parse(opts, include)
		done <- parsed{ast, err}
	}()
	select {
	case p := <-done:
		return p.ast, p.err
	case <-time.After(patience):
		return nil, fmt.Errorf("%s:1:1: the C parser finds no end; a header that it includes has a syntax error", opts.Source)
	}
}

func parse(opts Options, include string) (*cc.AST, error) {
	abi, err := cc.NewABI("linux", "amd64")
	if err != nil {
		return nil, err
	}
	predefined, err := os.ReadFile(filepath.Join(opts.Shim, "predefined.h"))
	if err != nil {
		return nil, err
	}
	source, err := os.ReadFile(opts.Source)
	if err != nil {
		return nil, err
	}
	cfg := &cc.Config{
		ABI: abi, UnsignedEnums: true, EvalAllMacros: true, ExpansionLimit: maxWork,
		IncludePaths:    []string{"", opts.Shim, include}, // the empty one is the including file's
		SysIncludePaths: []string{opts.Shim, include},
		PragmaHandler:   pragmas(),
	}
	ast, err := cc.Translate(cfg, []cc.Source{
		{Name: "<predefined>", Value: string(predefined)}, // the name is special to cc
		{Name: "<builtin>", Value: cc.Builtin},
		{Name: opts.Source, Value: string(source)},
	})
	if err != nil {
		return nil, readable(fmt.Sprintf("%s:%d:1", opts.Source, bytes.Count(source, []byte("\n"))+1), err)
	}
	return ast, nil
}

// pragmas returns a handler for what cc leaves to its user: it honours once,
// and refuses pack, which cc does not apply.
func pragmas() func([]cc.Token) error {
	seen := map[string]bool{}
	return func(words []cc.Token) error {
		if len(words) == 0 {
			return nil
		}
		switch at := words[0].Position(); words[0].SrcStr() {
		case "once":
			if seen[at.Filename] {
				return cc.SkipSource
			}
			seen[at.Filename] = true
		case "pack":
			return fmt.Errorf("%v: #pragma pack cannot be represented", at)
		}
		return nil
	}
}

var (
	position = regexp.MustCompile(`^\S.*?:\d+:\d+: `)
	// origin is where in its own source cc noticed an error.
	origin = regexp.MustCompile(`\s*\((\w+\.go:\d+:\w*[: ]*)+\)`)
	// inPanic finds the position of a header in the text of a panic of cc.
	inPanic = regexp.MustCompile(`\S+\.h:\d+:\d+`)
)

// readable puts each of cc's errors into one line, file:line:column and a
// sentence, and leaves out those that say nothing. end is where the input ends.
func readable(end string, err error) error {
	var errs []error
	for line := range strings.Lines(err.Error()) {
		at := position.FindString(line)
		if at == "" {
			continue // a consequence of an error with a position, or the end of the input
		}
		text := strings.TrimRight(origin.ReplaceAllString(line[len(at):], ""), ": \n")
		if strings.HasPrefix(text, "TODO ") {
			text = "this is beyond the C parser"
		}
		errs = append(errs, errors.New(at+text))
	}
	if len(errs) == 0 {
		return fmt.Errorf("%s: the headers end in the middle of a declaration", end)
	}
	return errors.Join(slices.CompactFunc(errs, func(a, b error) bool { return a.Error() == b.Error() })...)
}

// gaveUp is the error for a panic of cc, which names a header at best.
func gaveUp(source, text string) error {
	if at := inPanic.FindString(text); at != "" {
		return fmt.Errorf("%s: the C parser gives up here", at)
	}
	return fmt.Errorf("%s:1:1: the C parser gives up on the headers, of which one may include itself: %s", source, text)
}
