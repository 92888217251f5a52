// SPDX-License-Identifier: Apache-2.0

package soft

import (
	"bufio"
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// maxScripts is the number of scripts in a row, the program and the
// interpreters of each, after which suits gives up.
const maxScripts = 4

// suits returns an error if a program cannot use libraries other than the
// system's.
func suits(path string) error {
	for range maxScripts {
		interpreter, err := interpreterOf(path)
		if err != nil {
			return err
		}
		if interpreter == "" {
			return suitsELF(path)
		}
		path = interpreter
	}
	return fmt.Errorf("%s: the interpreter of a script is a script, too", path)
}

// interpreterOf returns the program that runs a script, or "" if the file is
// not a script.
func interpreterOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	line, err := bufio.NewReader(io.LimitReader(f, 256)).ReadString('\n')
	if err != nil && err != io.EOF {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	words := strings.Fields(strings.TrimPrefix(line, "#!"))
	if !strings.HasPrefix(line, "#!") || len(words) == 0 {
		return "", nil
	}
	if len(words) > 1 && filepath.Base(words[0]) == "env" && !strings.HasPrefix(words[1], "-") && !strings.Contains(words[1], "=") {
		return exec.LookPath(words[1])
	}
	return words[0], nil
}

func suitsELF(path string) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%s cannot run on the device: %s", path, fmt.Sprintf(format, args...))
	}
	f, err := elf.Open(path)
	if err != nil {
		if _, wrong := errors.AsType[*elf.FormatError](err); wrong || errors.Is(err, io.EOF) {
			return refuse("it is neither a program nor a script")
		}
		return err
	}
	defer f.Close()
	if _, err := buildinfo.ReadFile(path); err == nil {
		return refuse("it is a Go program, and one process cannot have Go twice: import %s/softroce in it, and set VERBENA_DEVICE=soft", module)
	}
	if own, err := elf.Open("/proc/self/exe"); err == nil {
		defer own.Close()
		if f.Machine != own.Machine || f.Class != own.Class || f.Data != own.Data {
			return refuse("it is for another processor: %v, %v, %v", f.Machine, f.Class, f.Data)
		}
	}
	loader := ""
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			text, err := io.ReadAll(io.LimitReader(p.Open(), 4096))
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			loader = strings.TrimRight(string(text), "\x00")
		}
	}
	switch {
	case loader == "":
		return refuse("it is linked statically, so it has its libraries in itself")
	case strings.Contains(filepath.Base(loader), "ld-musl"):
		return refuse("it is for the C library musl, and the device's libraries are for glibc")
	}
	if why, err := privileges(path); err != nil || why != "" {
		if err != nil {
			return err
		}
		return refuse("it has %s, so the system ignores LD_LIBRARY_PATH", why)
	}
	if library := ownLibrary(f, path); library != "" {
		return refuse("its DT_RPATH has %s, which comes before LD_LIBRARY_PATH", library)
	}
	return nil
}

// ownLibrary returns the path of a library that a program finds before those in
// LD_LIBRARY_PATH, or "" if there is none.
func ownLibrary(f *elf.File, path string) string {
	if later, err := f.DynString(elf.DT_RUNPATH); err != nil || len(later) > 0 { // DT_RUNPATH makes the loader ignore DT_RPATH
		return ""
	}
	lists, _ := f.DynString(elf.DT_RPATH)
	for _, list := range lists {
		for folder := range strings.SplitSeq(list, ":") {
			folder = strings.NewReplacer("$ORIGIN", filepath.Dir(path), "${ORIGIN}", filepath.Dir(path)).Replace(folder)
			for _, name := range names(folder)[1:3] {
				if _, err := os.Stat(name); err == nil {
					return name
				}
			}
		}
	}
	return ""
}
