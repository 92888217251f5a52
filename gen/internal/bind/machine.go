// SPDX-License-Identifier: Apache-2.0

package bind

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/check"
	"github.com/verbena-go/verbena/gen/internal/included"
	"github.com/verbena-go/verbena/gen/internal/scan"
)

// header is a C header. root is the folder in which programs look for it, and
// name is its name in #include.
type header struct{ root, name string }

// locate finds the header that file names. If dir is not empty, the header must
// be in dir. Otherwise, file is a path, or a name in one of the folders in
// which the compiler looks for headers.
func locate(file, dir string, roots included.Roots) (*header, error) {
	if file == "" {
		return nil, errors.New("-header is empty")
	}
	isFile := func(name string) bool {
		info, err := os.Stat(name)
		return err == nil && info.Mode().IsRegular()
	}
	if dir != "" {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return nil, err
		}
		if in, err := filepath.Rel(abs, file); err == nil && filepath.IsAbs(file) && filepath.IsLocal(in) {
			file = in
		}
		if !filepath.IsLocal(file) || !isFile(filepath.Join(abs, file)) {
			return nil, fmt.Errorf("-header %s: the folder of -I, %s, has no such header", file, dir)
		}
		return &header{abs, filepath.ToSlash(file)}, nil
	}
	if isFile(file) {
		abs, err := filepath.Abs(file)
		if err != nil {
			return nil, err
		}
		found := &header{filepath.Dir(abs), filepath.Base(abs)}
		for _, root := range roots {
			if in, err := filepath.Rel(root, abs); err == nil && filepath.IsLocal(in) && len(in) > 0 {
				found = &header{root, filepath.ToSlash(in)}
				break
			}
		}
		return found, nil
	}
	if filepath.IsLocal(file) {
		for _, root := range roots {
			if isFile(filepath.Join(root, file)) {
				return &header{root, filepath.ToSlash(file)}, nil
			}
		}
	}
	return nil, fmt.Errorf("-header %s: there is no such header here or in %s: install the package that contains it, or name its folder with -I",
		file, strings.Join(roots, ", "))
}

// libcHeaders lists the folders in which distributions install musl's headers:
// Debian, Fedora, Arch Linux and Alpine.
var libcHeaders = []string{
	"/usr/include/x86_64-linux-musl", "/usr/include/aarch64-linux-musl", "/usr/x86_64-linux-musl/include", "/usr/lib/musl/include",
}

// kernelFolders lists the folders of the kernel's headers in /usr/include.
var kernelFolders = []string{"asm-generic", "drm", "linux", "misc", "mtd", "rdma", "scsi", "sound", "video", "xen"}

// asmFolders lists the folders that distributions use for the kernel's headers
// asm/*.h.
var asmFolders = []string{"/usr/include/x86_64-linux-gnu/asm", "/usr/include/aarch64-linux-gnu/asm", "/usr/include/asm"}

var errNoLibc = errors.New("gen reads musl's headers in place of the C library's, but they are not installed here: on Debian and Ubuntu install musl-dev and linux-libc-dev, " +
	"or unpack these packages into a folder and name it with -libc")

// libc returns a folder with musl's and the kernel's headers, laid out as in
// Debian's packages. It returns dir, if that is not empty, or a new folder with
// links to the installed headers, which clean removes.
func libc(dir string) (folder string, clean func(), err error) {
	if dir != "" {
		if _, err := os.Stat(filepath.Join(scan.IncludeDir(dir), "x86_64-linux-musl", "stdio.h")); err != nil {
			return "", nil, fmt.Errorf("-libc %s: the folder has no usr/include/x86_64-linux-musl/stdio.h, which is in Debian's package musl-dev", dir)
		}
		return dir, func() {}, nil
	}
	musl, asm := first(libcHeaders, "stdio.h"), first(asmFolders, "types.h")
	if musl == "" || asm == "" || first([]string{"/usr/include/linux"}, "types.h") == "" {
		return "", nil, errNoLibc
	}
	links := map[string]string{"usr/include/x86_64-linux-musl": musl, "usr/include/x86_64-linux-gnu/asm": asm}
	for _, name := range kernelFolders {
		links["usr/include/"+name] = "/usr/include/" + name
	}
	return linked(links)
}

// first returns the first of the folders that contains a file, or "".
func first(folders []string, file string) string {
	for _, folder := range folders {
		if _, err := os.Stat(filepath.Join(folder, file)); err == nil {
			return folder
		}
	}
	return ""
}

// compiler returns the C compiler that cgo uses, and the folders in which it
// looks for headers.
func compiler(env *goEnv) (*check.Compiler, included.Roots, error) {
	if env.CGO_ENABLED != "1" {
		return nil, nil, errors.New("cgo is disabled, but the package needs it to call C: install a C compiler, such as gcc, and set CGO_ENABLED=1")
	}
	words := strings.Fields(env.CC)
	cc, err := check.Find(words...)
	if err != nil {
		return nil, nil, fmt.Errorf("the C compiler that cgo uses: %w", err)
	}
	roots, err := included.RootsOf(words...)
	return cc, roots, err
}

// linked makes a folder with the given symbolic links. links maps the path of a
// link in the folder to its target, which may be missing. clean removes the
// folder. A scan finds libc's headers in such a folder. A compiler for another
// architecture finds the header and those that it includes in one, without all
// other headers of this machine.
func linked(links map[string]string) (folder string, clean func(), err error) {
	top, err := os.MkdirTemp("", "gen-bind-")
	if err != nil {
		return "", nil, err
	}
	clean = func() { os.RemoveAll(top) }
	for name, to := range links {
		link := filepath.Join(top, filepath.FromSlash(name))
		if err = os.MkdirAll(filepath.Dir(link), 0o755); err == nil {
			err = os.Symlink(to, link)
		}
		if err != nil {
			clean()
			return "", nil, err
		}
	}
	return top, clean, nil
}
