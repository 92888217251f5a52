// SPDX-License-Identifier: Apache-2.0

package program

import (
	"errors"
	"io/fs"
	"os"
)

// Writable returns why a file cannot be written, so that a program says it
// before it begins, and not when it has a result. It changes no file, and
// leaves no new one.
func Writable(file string) error {
	if info, err := os.Stat(file); err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		return nil // to open and close a pipe would end its reader
	}
	_, err := os.Lstat(file)
	isNew := errors.Is(err, fs.ErrNotExist)
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	err = f.Close()
	if isNew {
		err = errors.Join(err, os.Remove(file))
	}
	return err
}
