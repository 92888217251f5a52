// SPDX-License-Identifier: Apache-2.0

package program

import (
	"context"
	"fmt"
	"io"
	"os"
)

// ReadFile returns the content of a file of at most limit bytes. It returns an
// error when ctx ends, also while it waits for the writer of a pipe. It then
// leaves a goroutine to that wait.
func ReadFile(ctx context.Context, name string, limit int64) ([]byte, error) {
	type content struct {
		text []byte
		err  error
	}
	read := make(chan content, 1)
	go func() {
		text, err := readFile(name, limit)
		read <- content{text, err}
	}()
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("read %s: %w", name, ctx.Err())
	case c := <-read:
		return c.text, c.err
	}
}

func readFile(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(text)) > limit {
		return nil, fmt.Errorf("%s has more than %d bytes", name, limit)
	}
	return text, nil
}
