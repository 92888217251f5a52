// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/verbena/internal/perf/measure"
)

// progress is a line on a terminal that shows the progress of a test or of a
// mesh.
type progress struct {
	to    io.Writer
	shown time.Duration
	size  int
	width int
}

// on returns a function that shows the line, or nil if stderr is not a
// terminal.
func (p *progress) on(stderr io.Writer) measure.Progress {
	if !program.IsTerminal(stderr) {
		return nil
	}
	p.to = stderr
	return p.show
}

// show updates the line, at most once a second.
func (p *progress) show(elapsed time.Duration, size, done int) {
	if size != p.size {
		p.size, p.shown = size, 0
	}
	if elapsed-p.shown < time.Second {
		return
	}
	p.shown = elapsed
	p.line(fmt.Sprintf("%d bytes: %d messages in %.0f s, %.2f Gb/s", size, done, elapsed.Seconds(), float64(done)*float64(size)*8/1e9/elapsed.Seconds()))
}

// line replaces the line with another.
func (p *progress) line(line string) {
	fmt.Fprintf(p.to, "\r%-*s", p.width, line)
	p.width = len(line)
}

// clear removes the line.
func (p *progress) clear() {
	if p.width > 0 {
		fmt.Fprintf(p.to, "\r%s\r", strings.Repeat(" ", p.width))
		p.width = 0
	}
}
