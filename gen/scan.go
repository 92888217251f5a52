package main

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/verbena-go/verbena/gen/internal/conventions"
	"github.com/verbena-go/verbena/gen/internal/scan"
)

func runScan(facts, headers, version string) error {
	if headers == "" || version == "" {
		return errors.New("scan needs -headers and -version")
	}
	known, err := conventions.Load(filepath.Join(facts, "conventions.txt"))
	if err != nil {
		return err
	}
	snapshot, err := scan.Scan(scan.Options{
		Headers: headers, Shim: filepath.Join(facts, "shim"), Source: filepath.Join(facts, "umbrella.h"),
		Version: version, Known: known,
	})
	if err != nil {
		return err
	}
	text, err := snapshot.Marshal()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(facts, "api", version+".json"), text, 0o644)
}
