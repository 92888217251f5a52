// SPDX-License-Identifier: Apache-2.0

// Package soft is the command verbena softroce. It runs programs that are not
// Go on the device in user space.
package soft

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/verbena-go/verbena/cmd/internal/program"
)

// Commands returns the commands below verbena softroce.
func Commands() *program.Commands {
	return &program.Commands{
		Name: "verbena softroce", Summary: "run programs that are not Go on the device in user space",
		Text: "Example: verbena softroce run rping -s -a 127.0.0.1",
		All: []program.Command{
			{Name: "run", Program: func() *program.Program { return (&run{}).program() }},
			{Name: "libs", Program: func() *program.Program { return (&libs{}).program() }},
			{Name: "stat", Program: func() *program.Program { return (&stat{}).program() }},
		},
	}
}

// run is the command that runs a program.
type run struct {
	folder string
	args   []string
}

func (r *run) program() *program.Program {
	return &program.Program{
		Name: "verbena softroce run", Usage: "verbena softroce run [-l folder] PROGRAM [ARG...]", Misused: program.ExitMisused,
		Summary: "run a program on the device in user space", Rest: &r.args, Run: r.run,
		Flags: func(f *program.Flags) {
			f.StringVarP(&r.folder, "libraries", "l", "", "`folder` with the libraries, from verbena softroce libs")
		},
		Text: `
Runs a program that is linked to libibverbs.so.1 or librdmacm.so.1, such as
rping and ib_write_bw, on an RDMA device in user space: without a card, a kernel
module, rdma-core's libraries or root. The program finds the device's files in
/dev/infiniband and /sys/class/infiniband in the place of the system's. Programs
that it starts have the device, too. It takes the place of verbena, with its
process ID and standard files.

Not every program can have other libraries than the system's. It says why if a
program cannot: it is linked statically, is for another C library or
processor, has privileges of its own, or is Go. A Go program imports package
softroce instead.

The libraries are those in ../lib/verbena beside verbena, if there are any.
Otherwise it builds them, with Go and a C compiler, says so on standard error,
and keeps them in the user's cache.

These environment variables are the device's:
  VERBENA_NETWORK  programs with the same text, or none, reach each other
  VERBENA_DEVICES  several devices, such as soft0=127.0.0.1;soft1=127.0.0.2
  VERBENA_HOSTILE  any text: packets come late, twice or in another order
  VERBENA_LIMITS   what the device has less of, such as sge=1,inline=0, or siw
  VERBENA_CHECK    1 or abort: reports what the program writes to memory of
                   requests in progress, and goes on or ends
  VERBENA_CAPTURE  a file: packets that are sent are added to it, for Wireshark

Exit status: the program's; 1 if it cannot be started, 2 for wrong arguments.

Example, in two shells:
  verbena softroce run rping -s -a 127.0.0.1
  verbena softroce run rping -c -a 127.0.0.1 -C 3 -v`,
	}
}

func (r *run) run(ctx context.Context, out program.Output) error {
	if len(r.args) == 0 {
		return program.Misuse("the program is missing")
	}
	path, err := exec.LookPath(r.args[0])
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err == nil {
		err = suits(path)
	}
	if err != nil {
		return err
	}
	folder := r.folder
	if folder == "" {
		folder, err = find(ctx, out.Stderr)
	} else {
		folder, err = whole(folder)
	}
	if err != nil {
		return err
	}
	if strings.ContainsAny(folder, " :;") {
		return fmt.Errorf("the system's loader takes no libraries from %q, whose path has a space, a colon or a semicolon: "+
			"build them with verbena softroce libs FOLDER, and use them with verbena softroce run -l FOLDER", folder)
	}
	env := environment(folder)
	if names, ok := chosen(); ok {
		files, err := filesOf(names)
		if err != nil {
			return err
		}
		env = append(env, filesVariable+"="+files)
	}
	return fmt.Errorf("%s: %w", path, become(path, r.args, env))
}

// Environment variables of the loader; see ld.so(8).
const (
	libraryPath = "LD_LIBRARY_PATH"
	preloaded   = "LD_PRELOAD"
)

// gcc's address sanitizer refuses to run if a library is preloaded before it,
// unless this option allows it. The functions that the preloaded library calls
// are still the sanitizer's.
const (
	asanOptions    = "ASAN_OPTIONS"
	asanComesLater = "verify_asan_link_order=0"
)

// environment returns the environment of this process, with the libraries in
// folder before all others.
func environment(folder string) []string {
	before := func(first, name string) string {
		if others := os.Getenv(name); others != "" {
			return first + ":" + others
		}
		return first
	}
	var all []string
	device := "soft"
	for _, v := range os.Environ() {
		if strings.HasPrefix(v, "VERBENA_DEVICE=soft:") {
			device = strings.TrimPrefix(v, "VERBENA_DEVICE=") // with the device's network
		}
		switch name, _, _ := strings.Cut(v, "="); name {
		case libraryPath, preloaded, asanOptions, "VERBENA_DEVICE", filesVariable:
		default:
			all = append(all, v)
		}
	}
	// Go programs that the program starts have a device of their own.
	return append(all, libraryPath+"="+before(folder, libraryPath),
		preloaded+"="+before(filepath.Join(folder, preload), preloaded),
		asanOptions+"="+before(asanComesLater, asanOptions), "VERBENA_DEVICE="+device)
}

// libs is the command that installs the libraries.
type libs struct{ folder string }

func (l *libs) program() *program.Program {
	return &program.Program{
		Name: "verbena softroce libs", Usage: "verbena softroce libs FOLDER", Misused: program.ExitMisused,
		Summary: "install the libraries that such programs need", Operands: []*string{&l.folder}, Run: l.run,
		Flags: func(*program.Flags) {},
		Text: `
Builds the libraries with which programs that are not Go run on the device in
user space, and writes them to a folder. It needs Go and a C compiler. Programs
then run on the device with LD_LIBRARY_PATH=FOLDER, and see its files with
LD_PRELOAD=FOLDER/libverbena-files.so; verbena softroce run sets both, and looks
in ../lib/verbena beside itself. The folder can be copied to machines with the
same processor and a C library that is not older.

Exit status: 0 if it has written them; 1 if not.

Example: verbena softroce libs /usr/local/lib/verbena`,
	}
}

func (l *libs) run(ctx context.Context, out program.Output) error {
	if l.folder == "" {
		return program.Misuse("the folder is missing")
	}
	built, err := build(ctx, out.Stderr)
	if err != nil {
		return err
	}
	if err := install(built, l.folder); err != nil {
		return err
	}
	out.Printf("%s\n", strings.Join(names(l.folder), "\n"))
	return nil
}
