// SPDX-License-Identifier: Apache-2.0

package soft

import (
	"errors"
	"os"
	"syscall"
)

// become replaces this program by another one. It returns only if that fails.
func become(path string, args, environment []string) error {
	return syscall.Exec(path, args, environment)
}

// privileges returns the privileges that a program has and the user lacks, such
// as those of set-user-ID.
func privileges(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return "", nil
	case info.Mode()&os.ModeSetuid != 0 && int(stat.Uid) != os.Geteuid():
		return "the set-user-ID bit", nil
	case info.Mode()&os.ModeSetgid != 0 && int(stat.Gid) != os.Getegid():
		return "the set-group-ID bit", nil
	}
	if n, err := syscall.Getxattr(path, "security.capability", nil); err == nil && n > 0 && os.Geteuid() != 0 {
		return "capabilities", nil
	}
	return "", nil
}

// isOwn reports whether the path is that of a folder that only this user can
// write.
func isOwn(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.IsDir() || info.Mode().Perm()&0o022 != 0 {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}

// lock waits until no other process is building.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, err
		}
	}
}
