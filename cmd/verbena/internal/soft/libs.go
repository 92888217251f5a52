// SPDX-License-Identifier: Apache-2.0

package soft

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"
)

const (
	module = "github.com/verbena-go/verbena"
	// device is the library that has the device. The others pass calls on to it.
	device = "libverbena-softroce.so"
	// preload is the library that shows programs the files of the device.
	preload = "libverbena-files.so"
)

// library is one of the libraries that programs are linked with or that are
// loaded before them.
type library struct {
	soname  string
	sources []string
	needs   []string
}

var libraries = []library{
	{"libibverbs.so.1", []string{"libibverbs.c", "own_libibverbs.c", "pass.c", "signals.c"}, nil},
	{"librdmacm.so.1", []string{"librdmacm.c"}, []string{"libibverbs.so.1"}},
	{"libmlx5.so.1", []string{"libmlx5.c"}, nil},
	{"libefa.so.1", []string{"libefa.c"}, nil},
	{preload, []string{"files.c"}, nil},
}

// names returns the paths of the libraries in a directory.
func names(folder string) []string {
	all := []string{filepath.Join(folder, device)}
	for _, l := range libraries {
		all = append(all, filepath.Join(folder, l.soname))
	}
	return all
}

// whole returns the absolute path of a directory, which must contain all
// libraries, and the files that one of them shows.
func whole(folder string) (string, error) {
	for _, name := range append(names(folder), filepath.Join(folder, filesFolder)) {
		if _, err := os.Stat(name); err != nil {
			return "", fmt.Errorf("%w: verbena softroce libs %s builds the libraries", err, folder)
		}
	}
	return filepath.Abs(folder)
}

// find returns a directory with the libraries: the one that is installed beside
// the program, or else one in the cache, in which it builds them.
func find(ctx context.Context, stderr io.Writer) (string, error) {
	if self, err := os.Executable(); err == nil {
		if self, err = filepath.EvalSymlinks(self); err == nil {
			if folder, err := whole(filepath.Join(filepath.Dir(self), "..", "lib", "verbena")); err == nil {
				return folder, nil
			}
		}
	}
	return build(ctx, stderr)
}

// build builds the libraries in the cache if they are missing or out of date,
// and returns the directory. If that takes long, build prints a message
// on stderr.
func build(ctx context.Context, stderr io.Writer) (string, error) {
	source, err := moduleFolder(ctx)
	if err != nil {
		return "", fmt.Errorf("build the libraries: %w", err)
	}
	where := sha256.Sum256([]byte(source + " " + runtime.Version()))
	folder, err := cacheFolder("softroce-" + hex.EncodeToString(where[:6]))
	if err != nil {
		return "", fmt.Errorf("build the libraries: no folder to keep them in: %w; "+
			"where there is one, build them with verbena softroce libs FOLDER, and use them with verbena softroce run -l FOLDER", err)
	}
	defer announce(stderr, folder)()
	unlock, err := lock(filepath.Join(folder, lockFile))
	if err != nil {
		return "", fmt.Errorf("build the libraries: %w", err)
	}
	defer unlock()
	for _, step := range []func(ctx context.Context, source, folder string) error{buildDevice, buildLibraries} {
		if err := step(ctx, source, folder); err != nil {
			return "", fmt.Errorf("build the libraries in %s, which needs Go and a C compiler: %w", source, err)
		}
	}
	return folder, nil
}

// announce prints that the libraries are being built: at once if they are
// missing, or else when building, or waiting for another process that builds,
// takes more than a moment. It prints nothing after stop has returned.
func announce(stderr io.Writer, folder string) (stop func()) {
	text := fmt.Sprintf("verbena softroce: building the libraries in %s, which takes a minute or so the first time\n", folder)
	if _, err := whole(folder); err != nil {
		fmt.Fprint(stderr, text)
		return func() {}
	}
	built := make(chan struct{})
	var timer sync.WaitGroup
	timer.Go(func() {
		select {
		case <-built:
		case <-time.After(2 * time.Second):
			fmt.Fprint(stderr, text)
		}
	})
	return func() {
		close(built)
		timer.Wait()
	}
}

// buildDevice runs go build, which finds out whether there is anything to do.
func buildDevice(ctx context.Context, source, folder string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-buildmode=c-shared", "-o", filepath.Join(folder, device), "./softroce/internal/clib")
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1", "GOFLAGS=-mod=readonly", "GOWORK=off")
	return quietly(cmd)
}

// buildLibraries compiles the C files, unless the libraries were built from the
// same files.
func buildLibraries(ctx context.Context, source, folder string) error {
	compiler := os.Getenv("CC")
	if compiler == "" {
		compiler = "cc"
	}
	from := filepath.Join(source, "softroce", "internal", "clib", "c")
	state, err := digest(compiler, from, filepath.Join(source, "softroce", "internal", "capi"), filepath.Join(source, "generated", "librdmacm"))
	if err != nil {
		return err
	}
	stamp := filepath.Join(folder, ".built")
	if before, err := os.ReadFile(stamp); err == nil && string(before) == state {
		if _, err := whole(folder); err == nil {
			return nil
		}
	}
	for _, l := range libraries {
		next := filepath.Join(folder, "."+l.soname)
		script, _, _ := strings.Cut(l.soname, ".")
		args := append(strings.Fields(compiler)[1:], "-O2", "-g", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-pthread",
			"-Wl,-z,nodelete", "-Wl,--no-undefined", "-Wl,-soname,"+l.soname, "-o", next)
		if l.soname == preload {
			// Its functions have no versions, and may be called where there is
			// not enough stack for the loader to find libc's.
			args = append(args, "-Wl,-z,now")
		} else {
			args = append(args, "-Wl,--version-script="+script+".map")
		}
		args = append(args, l.sources...)
		args = append(args, "-Wl,--no-as-needed")
		for _, name := range l.needs {
			args = append(args, filepath.Join(folder, name))
		}
		cmd := exec.CommandContext(ctx, strings.Fields(compiler)[0], append(args, "-ldl")...)
		cmd.Dir = from
		if err := quietly(cmd); err != nil {
			return err
		}
		if err := os.Rename(next, filepath.Join(folder, l.soname)); err != nil {
			return err
		}
	}
	if err := writeFiles(folder, usual); err != nil {
		return err
	}
	return os.WriteFile(stamp, []byte(state), 0o644)
}

// digest returns a text that changes when the compiler or a C file changes.
func digest(compiler string, folders ...string) (string, error) {
	all := sha256.New()
	fmt.Fprintln(all, compiler)
	for _, folder := range folders {
		err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.Contains(".c .h .map", filepath.Ext(path)) {
				return err
			}
			text, err := os.ReadFile(path)
			fmt.Fprintf(all, "%s %d\n%s", d.Name(), len(text), text)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(all.Sum(nil)), nil
}

// quietly runs a command. It shows the command's output only in an error.
func quietly(cmd *exec.Cmd) error {
	output, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(output))
	}
	return nil
}

// moduleFolder returns the directory with this module's source: the one in
// which this file was compiled, or else the module cache of Go.
func moduleFolder(ctx context.Context) (string, error) {
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		folder := filepath.Join(filepath.Dir(file), "..", "..", "..", "..")
		if text, err := os.ReadFile(filepath.Join(folder, "go.mod")); err == nil && bytes.HasPrefix(text, []byte("module "+module+"\n")) {
			return folder, nil
		}
	}
	version := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range append(info.Deps, &info.Main) {
			if m.Path == module {
				version = m.Version
			}
		}
	}
	if version == "" || version == "(devel)" {
		return "", errors.New("the module's source is not in the directory in which verbena was built; run verbena softroce libs where the source is")
	}
	output, err := exec.CommandContext(ctx, "go", "mod", "download", "-json", module+"@"+version).Output()
	if err != nil {
		return "", fmt.Errorf("go mod download %s@%s: %w", module, version, err)
	}
	var found struct{ Dir string }
	if err := json.Unmarshal(output, &found); err != nil {
		return "", err
	}
	return found.Dir, nil
}

// install copies the libraries into a directory. Running programs keep the
// libraries that they have opened.
func install(from, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	unlock, err := lock(filepath.Join(to, lockFile))
	if err != nil {
		return err
	}
	defer unlock()
	for _, name := range names(from) {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		next := filepath.Join(to, "."+filepath.Base(name))
		if err := os.WriteFile(next, text, 0o755); err != nil {
			return err
		}
		if err := os.Rename(next, filepath.Join(to, filepath.Base(name))); err != nil {
			return err
		}
	}
	return writeFiles(to, usual)
}
