// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"path/filepath"
	"slices"
	"strings"

	"modernc.org/cc/v4"
)

// systemDirs returns the folders of libc's and the kernel's headers, in the
// order in which cc searches them. It searches them before the folder of the
// bound headers.
func systemDirs(opts Options) []string {
	if opts.Libc == "" {
		return []string{opts.Shim}
	}
	include := IncludeDir(opts.Libc)
	return []string{
		compilerDir,
		filepath.Join(include, "x86_64-linux-musl"),
		filepath.Join(include, "x86_64-linux-gnu"),
		include,
	}
}

func (s *scanner) isSystem(n cc.Node) bool { return isBelow(n.Position().Filename, s.system) }

// isBelow reports whether a file is in one of the folders.
func isBelow(file string, folders []string) bool {
	return slices.ContainsFunc(folders, func(dir string) bool {
		return strings.HasPrefix(file, dir+string(filepath.Separator))
	})
}
