// SPDX-License-Identifier: Apache-2.0

package selftest

import (
	"fmt"
	"io"
	"strings"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
)

// progress is a line on a terminal that names the running check.
type progress struct {
	to    io.Writer
	width int
}

// on returns a function that shows the line, or nil if stderr is not a
// terminal.
func (p *progress) on(stderr io.Writer) func(number, of int, c check.Check) {
	if !program.IsTerminal(stderr) {
		return nil
	}
	p.to = stderr
	return p.show
}

func (p *progress) show(number, of int, c check.Check) {
	line := fmt.Sprintf("%d of %d: %s", number, of, c.Name)
	fmt.Fprintf(p.to, "\r%-*s", p.width, line)
	p.width = max(p.width, len(line))
}

// clear removes the line.
func (p *progress) clear() {
	if p.width > 0 {
		fmt.Fprintf(p.to, "\r%s\r", strings.Repeat(" ", p.width))
		p.width = 0
	}
}
