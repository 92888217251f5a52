package main

import "github.com/verbena-go/verbena/gen/internal/emit"

func runEmit(facts, out string) error {
	in, err := emit.Load(facts)
	if err != nil {
		return err
	}
	return emit.Emit(in, out)
}
