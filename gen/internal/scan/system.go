// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"modernc.org/cc/v4"
)

// systemDirs returns the folders of libc's and the kernel's headers, in the
// order in which cc searches them.
func systemDirs(opts Options) []string {
	if opts.Shim == "" {
		return libcDirs(opts.Libc)
	}
	return append([]string{opts.Shim}, libcDirs(opts.Libc)...)
}

// searched returns all folders in which cc looks for headers, in their order.
// With shims, the bound headers come before libc's, because the kernel's also
// has some of their names.
func searched(opts Options, include string) []string {
	own := append([]string{include}, opts.More...)
	if opts.Shim == "" {
		return append(libcDirs(opts.Libc), own...)
	}
	return slices.Concat([]string{opts.Shim}, own, libcDirs(opts.Libc))
}

// libcDirs returns the folders of Options.Libc.
func libcDirs(libc string) []string {
	if libc == "" {
		return nil
	}
	include := IncludeDir(libc)
	return []string{
		compilerDir,
		filepath.Join(include, "x86_64-linux-musl"),
		filepath.Join(include, "x86_64-linux-gnu"),
		include,
	}
}

// FindLibcs returns the path of the header of libc or the kernel with the given
// name, or "" if there is none. libc is Options.Libc.
func FindLibcs(libc, name string) string {
	for _, dir := range libcDirs(libc)[1:] { // without cc's own
		if file := filepath.Join(dir, filepath.FromSlash(name)); isFile(file) {
			return file
		}
	}
	return ""
}

func isFile(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular()
}

func (s *scanner) isSystem(n cc.Node) bool { return isBelow(n.Position().Filename, s.system) }

// isBelow reports whether a file is in one of the folders.
func isBelow(file string, folders []string) bool {
	return slices.ContainsFunc(folders, func(dir string) bool {
		return strings.HasPrefix(file, dir+string(filepath.Separator))
	})
}
