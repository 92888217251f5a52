// SPDX-License-Identifier: Apache-2.0

// Package included finds out which headers a C compiler has read. If a header
// is missing in the folder that the compiler should use, the compiler takes it
// from the system, where it may be of another version of rdma-core.
package included

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Folders lists the folders of rdma-core's headers, below an include folder.
var Folders = []string{"infiniband", "rdma"}

// Option makes gcc and clang list, in their messages, the files that they
// include.
const Option = "-H"

var (
	listed = regexp.MustCompile(`(?m)^\.+ (.+)\n`)
	// gcc lists files without an include guard once more, under this
	// heading.
	twice = regexp.MustCompile(`(?m)^Multiple include guards may be useful for:\n(?:[^:\n]+\n)*`)
)

// List returns the files that a compiler has listed in its messages, and the
// other messages.
func List(messages string) (files []string, rest string) {
	for _, m := range listed.FindAllStringSubmatch(messages, -1) {
		files = append(files, m[1])
	}
	return files, twice.ReplaceAllString(listed.ReplaceAllString(messages, ""), "")
}

// Roots lists the folders in which a compiler looks for headers without being
// told to.
type Roots []string

// RootsOf asks the compiler that command runs for its Roots.
func RootsOf(command ...string) (Roots, error) {
	cmd := exec.Command(command[0], slices.Concat(command[1:], []string{"-E", "-v", "-x", "c", os.DevNull})...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var messages bytes.Buffer
	cmd.Stderr = &messages
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", cmd, err, messages.Bytes())
	}
	return parseRoots(messages.String())
}

func parseRoots(messages string) (Roots, error) {
	_, list, _ := strings.Cut(messages, "#include \"...\" search starts here:\n")
	list, _, ok := strings.Cut(list, "End of search list.\n")
	if !ok {
		return nil, errors.New("the C compiler does not say where it looks for headers")
	}
	var roots Roots
	for line := range strings.Lines(list) {
		if dir, ok := strings.CutPrefix(line, " "); ok {
			roots = append(roots, filepath.Clean(strings.TrimSuffix(dir, "\n")))
		}
	}
	return roots, nil
}

// Check fails if one of the files is a header of rdma-core that the compiler
// has taken from its Roots instead of from dir. dir is the folder in which the
// compiler was told to look first, or "".
func (r Roots) Check(dir string, files []string) error {
	var errs []error
	for _, file := range files {
		if _, ours := under(dir, file); ours && dir != "" {
			continue
		}
		for _, root := range r {
			name, ok := under(root, file)
			if folder, _, _ := strings.Cut(name, string(filepath.Separator)); ok && slices.Contains(Folders, folder) {
				errs = append(errs, fmt.Errorf("the compiler has taken %s from %s, not from the folder %q", name, filepath.Clean(file), dir))
				break
			}
		}
	}
	return errors.Join(errs...)
}

// under returns the path of a file below a folder. It returns false if the file
// is not below the folder. It compares the paths with links resolved, too,
// because gcc lists a resolved path if that is shorter.
func under(dir, file string) (name string, ok bool) {
	for _, form := range []func(string) (string, error){filepath.Abs, filepath.EvalSymlinks} {
		d, errDir := form(dir)
		f, errFile := form(file)
		if errDir != nil || errFile != nil {
			continue
		}
		if name, ok := strings.CutPrefix(f, strings.TrimSuffix(d, string(filepath.Separator))+string(filepath.Separator)); ok {
			return name, true
		}
	}
	return "", false
}

// Run runs a compiler that was told to take headers from dir. It fails if the
// compiler fails, or if Check does.
func (r Roots) Run(cmd *exec.Cmd, dir string) (messages string, err error) {
	cmd.Args = append(cmd.Args, Option)
	out, err := cmd.CombinedOutput()
	files, messages := List(string(out))
	return messages, errors.Join(err, r.Check(dir, files))
}
