package main

import (
	"path/filepath"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
	"github.com/verbena-go/verbena/gen/internal/emit"
)

// newest is the version that the bindings are made from.
const newest = "65.0"

func runEmit(facts, out string) error {
	in, err := input(facts)
	if err != nil {
		return err
	}
	return emit.Emit(in, out)
}

func input(facts string) (emit.Input, error) {
	var in emit.Input
	var err error
	if in.API, err = api.Load(filepath.Join(facts, "api", newest+".json")); err != nil {
		return in, err
	}
	if in.Known, err = conventions.Load(filepath.Join(facts, "conventions.txt")); err != nil {
		return in, err
	}
	in.Strings, err = conventions.LoadStrings(filepath.Join(facts, "strings.txt"))
	return in, err
}
