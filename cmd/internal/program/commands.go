// SPDX-License-Identifier: Apache-2.0

package program

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// ExitMisused is the exit status of Commands, and of the programs in them, for
// wrong arguments.
const ExitMisused = 2

// Commands is a program with several commands. Its first argument names one of
// them.
type Commands struct {
	Name    string
	Summary string // summary of the commands in one line
	Text    string // text that -h prints after the list of commands
	Version func() string
	All     []Command
}

// Command is one of Commands. It is a Program, or Commands with commands of its
// own.
type Command struct {
	Name     string
	Program  func() *Program // returns a new program, with the defaults of its flags
	Commands *Commands
}

// Summary returns what the command does, in one line.
func (c Command) Summary() string {
	if c.Commands != nil {
		return c.Commands.Summary
	}
	return c.Program().Summary
}

// run runs the command.
func (c Command) run(args []string, stdout, stderr io.Writer) int {
	if c.Commands != nil {
		return c.Commands.Main(args, stdout, stderr)
	}
	return c.Program().Main(args, stdout, stderr)
}

// Main runs the command that the first argument names, and returns its exit
// status. Without arguments, Main prints the list of commands and returns
// ExitMisused.
func (c *Commands) Main(args []string, stdout, stderr io.Writer) int {
	return written(c.Name, stdout, stderr, func(stdout io.Writer) int { return c.main(args, stdout, stderr) })
}

func (c *Commands) main(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		c.help(stderr)
		return ExitMisused
	}
	name, args := args[0], args[1:]
	switch {
	case name == "-h" || name == "--help":
		c.help(stdout)
		return 0
	case name == "help":
		return c.helpAbout(args, stdout, stderr)
	case name == "--version" && c.Version != nil:
		if len(args) > 0 {
			return c.misused(stderr, fmt.Sprintf("unexpected argument %q", args[0]))
		}
		fmt.Fprintln(stdout, c.Version())
		return 0
	}
	if command, ok := c.find(name); ok {
		return command.run(args, stdout, stderr)
	}
	return c.misused(stderr, c.unknown(name))
}

// helpAbout prints the text that -h of the command prints. names is the path of
// the command.
func (c *Commands) helpAbout(names []string, stdout, stderr io.Writer) int {
	if len(names) == 0 {
		c.help(stdout)
		return 0
	}
	command, ok := c.find(names[0])
	if !ok {
		return c.misused(stderr, c.unknown(names[0]))
	}
	if command.Commands != nil {
		return command.Commands.helpAbout(names[1:], stdout, stderr)
	}
	if len(names) > 1 {
		return c.misused(stderr, fmt.Sprintf("unexpected argument %q", names[1]))
	}
	return command.run([]string{"-h"}, stdout, stderr)
}

func (c *Commands) find(name string) (Command, bool) {
	i := slices.IndexFunc(c.All, func(command Command) bool { return command.Name == name })
	if i < 0 {
		return Command{}, false
	}
	return c.All[i], true
}

// unknown returns the error text for an unknown command, with the command that
// may have been meant.
func (c *Commands) unknown(name string) string {
	if strings.HasPrefix(name, "-") {
		return fmt.Sprintf("unknown flag %s", name)
	}
	text := fmt.Sprintf("unknown command %q", name)
	if near := c.nearest(name); near != "" {
		text += fmt.Sprintf("; did you mean %q?", near)
	}
	return text
}

// nearest returns the name of the command that is most similar to a name, or ""
// if none is similar.
func (c *Commands) nearest(name string) (nearest string) {
	least := 1 + max(1, len(name)/3) // more edits than are allowed
	for _, command := range c.All {
		d := distance(name, command.Name)
		if len(name) > 1 && strings.HasPrefix(command.Name, name) {
			d = 0
		}
		if d < least {
			nearest, least = command.Name, d
		}
	}
	return nearest
}

// distance returns the number of edits that make b of a. An edit inserts,
// removes or replaces a letter, or exchanges two neighbors.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		for j := range rows[i] {
			if i == 0 || j == 0 {
				rows[i][j] = i + j
				continue
			}
			replace := rows[i-1][j-1]
			if a[i-1] != b[j-1] {
				replace++
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, replace)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}

func (c *Commands) misused(stderr io.Writer, text string) int {
	fmt.Fprintf(stderr, "%s: %s; %s -h lists the commands\n", c.Name, text, c.Name)
	return ExitMisused
}

// Usage returns one line for each way to run the program.
func (c *Commands) Usage() string {
	text := c.Name + " COMMAND [flags] [arguments]\n" + c.Name + " help [COMMAND]"
	if c.Version != nil {
		text += "\n" + c.Name + " --version"
	}
	return text
}

func (c *Commands) help(w io.Writer) {
	fmt.Fprintf(w, "%s\n\n", c.Usage())
	width := 0
	for _, command := range c.All {
		width = max(width, len(command.Name))
	}
	for _, command := range c.All {
		fmt.Fprintf(w, "  %-*s   %s\n", width, command.Name, command.Summary())
	}
	fmt.Fprintf(w, "\n%s\n", strings.TrimSpace(c.Text))
}
