// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/verbena-go/verbena/cmd/internal/program"
)

// shells maps a shell to the function that writes its script for completing
// commands, flags and arguments.
var shells = map[string]func(io.Writer, []node){"bash": completeBash, "zsh": completeZsh, "fish": completeFish}

// completion returns the command that prints a shell's script for completing
// the given commands.
func completion(of *program.Commands) *program.Program {
	var shell string
	return &program.Program{
		Name: "verbena completion", Summary: "print a script that completes commands and flags in a shell",
		Usage: "verbena completion bash|zsh|fish", Misused: program.ExitMisused,
		Operands: []*string{&shell}, Words: []string{"bash", "zsh", "fish"}, Flags: func(*program.Flags) {},
		Text: `
Prints a script for a shell with which the tab key completes the commands of
verbena, their flags and some arguments.

In a running shell:

  bash: source <(verbena completion bash)
  zsh:  source <(verbena completion zsh)
  fish: verbena completion fish | source

For those to come, write it to a file where the shell looks:

  bash: ~/.local/share/bash-completion/completions/verbena
  zsh:  _verbena, in a folder of $fpath
  fish: ~/.config/fish/completions/verbena.fish

Example: source <(verbena completion bash)`,
		Run: func(_ context.Context, out program.Output) error {
			write := shells[shell]
			if write == nil {
				return program.Misuse("expected one of bash, zsh, fish, found %q", shell)
			}
			write(out.Stdout, nodes(of))
			return nil
		},
	}
}

// node is verbena or one of its commands, at any level.
type node struct {
	path     []string // names of the commands on the way to this one, without verbena
	commands []program.Command
	program  *program.Program // program of the command; nil if it has commands
}

// nodes returns all commands, each before those below it.
func nodes(of *program.Commands) []node { return below(nil, of) }

func below(path []string, of *program.Commands) []node {
	all := []node{{path: path, commands: of.All}}
	for _, command := range of.All {
		to := append(path[:len(path):len(path)], command.Name)
		if command.Commands != nil {
			all = append(all, below(to, command.Commands)...)
			continue
		}
		all = append(all, node{path: to, program: command.Program()})
	}
	return all
}

// key returns the path in the form in which the scripts store it.
func (n node) key() string { return strings.Join(n.path, " ") }

// names returns the names of the commands below this one, and help.
func (n node) names() []string {
	var all []string
	for _, command := range n.commands {
		all = append(all, command.Name)
	}
	return append(all, "help")
}

// flags returns the flags in the form in which users enter them: those with a
// value if withValue is set, otherwise all.
func (n node) flags(withValue bool) (all []string) {
	if n.program == nil {
		if withValue {
			return nil
		}
		all = []string{"-h", "--help"}
		if len(n.path) == 0 {
			all = append(all, "--version")
		}
		return all
	}
	for _, o := range n.program.Options() {
		if (o.Value != "") != withValue {
			continue
		}
		if o.Letter != "" {
			all = append(all, "-"+o.Letter)
		}
		all = append(all, "--"+o.Name)
	}
	return all
}

// walk writes the part of the scripts of bash and zsh that finds the command to
// complete. It skips the values of flags.
func walk(w io.Writer, all []node) {
	var keys []string
	for _, n := range all[1:] {
		keys = append(keys, fmt.Sprintf("%q", n.key()))
	}
	fmt.Fprintf(w, "\t\tcase \"${at:+$at }$word\" in\n\t\t%s) at=\"${at:+$at }$word\" ;;\n\t\thelp | *\" help\") ;;\n\t\t*) break ;;\n\t\tesac\n\tdone\n", strings.Join(keys, " | "))
}

func completeBash(w io.Writer, all []node) {
	fmt.Fprint(w, `# Completes verbena's commands in bash: source <(verbena completion bash)
_verbena() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} at= word words= values= i
	for ((i = 1; i < COMP_CWORD; i++)); do
		word=${COMP_WORDS[i]}
`)
	walk(w, all)
	fmt.Fprint(w, "\tlocal arguments=$((COMP_CWORD - i))\n\tcase $at in\n")
	for _, n := range all {
		fmt.Fprintf(w, "\t%q)\n", n.key())
		values := strings.Join(n.flags(true), " ")
		flags := strings.Join(append(n.flags(false), n.flags(true)...), " ")
		fmt.Fprintf(w, "\t\tvalues=%q\n\t\tcase $cur in\n\t\t-*) words=%q ;;\n", " "+values+" ", flags)
		switch {
		case n.program == nil:
			fmt.Fprintf(w, "\t\t*) [ $arguments -gt 0 ] || words=%q ;;\n", strings.Join(n.names(), " "))
		case n.program.Rest != nil:
			fmt.Fprint(w, "\t\t*) [ $arguments -gt 0 ] || { COMPREPLY=($(compgen -c -- \"$cur\")); return; } ;;\n")
		case n.program.Words != nil:
			fmt.Fprintf(w, "\t\t*) [ $arguments -gt 0 ] || words=%q ;;\n", strings.Join(n.program.Words, " "))
		}
		fmt.Fprint(w, "\t\tesac\n\t\t;;\n")
	}
	fmt.Fprint(w, `	esac
	COMPREPLY=()
	case $values in
	*" $prev "*) return ;; # the value of a flag
	esac
	[ -z "$words" ] || COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -o default -F _verbena verbena
`)
}

// zshItem returns a word with its description, in zsh's syntax, in which a
// colon would end the word.
func zshItem(word, about string) string {
	return "'" + strings.ReplaceAll(word+":"+strings.ReplaceAll(about, ":", `\:`), "'", `'\''`) + "'"
}

func completeZsh(w io.Writer, all []node) {
	fmt.Fprint(w, `#compdef verbena
# Completes verbena's commands in zsh: source <(verbena completion zsh)
_verbena() {
	local at= word i
	local -a items options
	for ((i = 2; i < CURRENT; i++)); do
		word=${words[i]}
`)
	walk(w, all)
	fmt.Fprint(w, "\tlocal arguments=$((CURRENT - i))\n\tcase $at in\n")
	for _, n := range all {
		fmt.Fprintf(w, "\t%q)\n\t\titems=(", n.key())
		rest := "_files"
		if n.program == nil {
			for _, command := range n.commands {
				fmt.Fprintf(w, "%s ", zshItem(command.Name, command.Summary()))
			}
			fmt.Fprintf(w, "%s)\n\t\toptions=(%s)\n", zshItem("help", "say more about a command"), strings.Join(n.flags(false), " "))
			rest = ":"
		} else {
			if n.program.Rest != nil {
				rest = "_command_names"
			}
			fmt.Fprintf(w, "%s)\n\t\toptions=(", strings.Join(n.program.Words, " "))
			for _, o := range n.program.Options() {
				for _, flag := range []string{"-" + o.Letter, "--" + o.Name} {
					if flag != "-" {
						fmt.Fprintf(w, "%s ", zshItem(flag, o.Usage))
					}
				}
			}
			fmt.Fprint(w, ")\n")
		}
		fmt.Fprintf(w, "\t\t[[ $arguments -eq 0 ]] || items=()\n\t\tif [[ $PREFIX == -* ]]; then\n\t\t\t_describe -o option options\n"+
			"\t\telif ((${#items})); then\n\t\t\t_describe argument items\n\t\telse\n\t\t\t%s\n\t\tfi\n\t\t;;\n", rest)
	}
	fmt.Fprint(w, `	esac
}
if [ "${funcstack[1]}" = _verbena ]; then
	_verbena "$@"
else
	compdef _verbena verbena
fi
`)
}

// fishWord returns the text quoted for fish.
func fishWord(text string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(text) + "'"
}

func completeFish(w io.Writer, all []node) {
	fmt.Fprint(w, "# Completes verbena's commands in fish: verbena completion fish | source\n"+
		"function __verbena_at --description 'whether the words so far are a command and its arguments'\n"+
		"\tset -l words (commandline -opc)[2..-1]\n"+
		"\ttest (count $words) -ge (count $argv); or return 1\n"+
		"\tfor i in (seq (count $argv))\n\t\ttest \"$words[$i]\" = \"$argv[$i]\"; or return 1\n\tend\nend\n"+
		"function __verbena_alone --description 'whether they are that command only'\n"+
		"\t__verbena_at $argv; and test (count (commandline -opc)) -eq (math 1 + (count $argv))\nend\n"+
		"complete -c verbena -e\n")
	for _, n := range all {
		at := fishWord(strings.TrimSpace("__verbena_at " + n.key()))
		alone := fishWord(strings.TrimSpace("__verbena_alone " + n.key()))
		if n.program == nil {
			for _, command := range n.commands {
				fmt.Fprintf(w, "complete -c verbena -f -n %s -a %s -d %s\n", alone, command.Name, fishWord(command.Summary()))
			}
			fmt.Fprintf(w, "complete -c verbena -f -n %s -a help -d 'say more about a command'\ncomplete -c verbena -f -n %[1]s -s h -l help\n", alone)
			// After help, the script completes commands but no
			// files.
			fmt.Fprintf(w, "complete -c verbena -f -n %s\n", fishWord(strings.TrimSpace("__verbena_at "+n.key())+" help"))
			for _, command := range n.commands {
				fmt.Fprintf(w, "complete -c verbena -f -n %s -a %s -d %s\n",
					fishWord(strings.TrimSpace("__verbena_alone "+n.key())+" help"), command.Name, fishWord(command.Summary()))
			}
			if len(n.path) == 0 {
				fmt.Fprintf(w, "complete -c verbena -f -n %s -l version\n", alone)
			}
			continue
		}
		if n.program.Words != nil {
			fmt.Fprintf(w, "complete -c verbena -f -n %s -a %s\n", alone, fishWord(strings.Join(n.program.Words, " ")))
		}
		if len(n.program.Operands) == 0 && n.program.Rest == nil || n.program.Words != nil && len(n.program.Operands) == 1 {
			fmt.Fprintf(w, "complete -c verbena -f -n %s\n", at) // nothing that could be a file
		}
		for _, o := range n.program.Options() {
			line := fmt.Sprintf("complete -c verbena -n %s -l %s -d %s", at, o.Name, fishWord(o.Usage))
			if o.Letter != "" {
				line += " -s " + o.Letter
			}
			if o.Value != "" {
				line += " -r"
			}
			fmt.Fprintln(w, line)
		}
	}
}
