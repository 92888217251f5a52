// SPDX-License-Identifier: Apache-2.0

// Package misuse calls every exported method of an object, and functions that
// take it, for tests of what becomes of calls that are wrong.
package misuse

import (
	"fmt"
	"io"
	"reflect"
	"runtime"
	"strings"
)

// Method is a method of an object, or a function that takes it first, bound to
// it.
type Method struct {
	Name  string
	Fails bool // its last result is an error, or it iterates over errors
	call  reflect.Value
}

var errorType = reflect.TypeFor[error]()

// Methods returns the exported methods of an object, and those of the functions
// that take it as their first argument.
func Methods(object any, functions ...any) []Method {
	v := reflect.ValueOf(object)
	var methods []Method
	for i := range v.NumMethod() {
		methods = append(methods, method(v.Type().Method(i).Name, v.Method(i)))
	}
	for _, f := range functions {
		if t := reflect.TypeOf(f); t.In(0) == v.Type() {
			methods = append(methods, method(Name(f), bind(reflect.ValueOf(f), v)))
		}
	}
	return methods
}

func method(name string, call reflect.Value) Method {
	t := call.Type()
	last := t.NumOut() - 1
	fails := last >= 0 && (t.Out(last) == errorType || iteratesErrors(t.Out(last)))
	return Method{Name: name, Fails: fails, call: call}
}

// Name returns the name of a function, with that of its package before it.
func Name(function any) string {
	name := runtime.FuncForPC(reflect.ValueOf(function).Pointer()).Name()
	return name[strings.LastIndex(name, "/")+1:]
}

// bind returns a function with its first argument given.
func bind(f, first reflect.Value) reflect.Value {
	t := f.Type()
	var in, out []reflect.Type
	for i := range t.NumIn() - 1 {
		in = append(in, t.In(i+1))
	}
	for i := range t.NumOut() {
		out = append(out, t.Out(i))
	}
	call := f.Call
	if t.IsVariadic() {
		call = f.CallSlice
	}
	return reflect.MakeFunc(reflect.FuncOf(in, out, t.IsVariadic()), func(args []reflect.Value) []reflect.Value {
		return call(append([]reflect.Value{first}, args...))
	})
}

func iteratesErrors(t reflect.Type) bool {
	return t.CanSeq2() && t.Kind() == reflect.Func && t.In(0).In(1) == errorType
}

// Getter reports whether the method only says something about the object.
func (m Method) Getter() bool {
	t := m.call.Type()
	return t.NumIn() == 0 && t.NumOut() == 1 && !m.Fails
}

// Takes returns the types of the method's parameters.
func (m Method) Takes() []reflect.Type {
	var types []reflect.Type
	for i := range m.call.Type().NumIn() {
		types = append(types, m.call.Type().In(i))
	}
	return types
}

// Call calls the method with arguments that args makes, and closes what it
// returned. A panic becomes an error that is a *Panic.
func (m Method) Call(args func(reflect.Type) reflect.Value) (results []any, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &Panic{m.Name, v}
		}
	}()
	t := m.call.Type()
	in := make([]reflect.Value, t.NumIn())
	for i := range in {
		in[i] = args(t.In(i))
	}
	call := m.call.Call
	if t.IsVariadic() {
		call = m.call.CallSlice
	}
	for _, v := range call(in) {
		if v.Type() == errorType {
			err, _ = v.Interface().(error)
			continue
		}
		if iteratesErrors(v.Type()) {
			for _, e := range v.Seq2() {
				err, _ = e.Interface().(error)
				break
			}
			continue
		}
		results = append(results, v.Interface())
	}
	return results, closeAll(m, results, err)
}

// closeAll closes what a method made.
func closeAll(m Method, results []any, err error) error {
	if err != nil || m.Getter() {
		return err
	}
	for _, r := range results {
		for _, c := range closers(reflect.ValueOf(r)) {
			if err := c.Close(); err != nil {
				return fmt.Errorf("close what %s made: %w", m.Name, err)
			}
		}
	}
	return nil
}

// closers returns what is to be closed: a result, or what it has in its fields.
func closers(result reflect.Value) (found []io.Closer) {
	if !result.IsValid() || result.Kind() == reflect.Pointer && result.IsNil() {
		return nil
	}
	if c, ok := result.Interface().(io.Closer); ok {
		return []io.Closer{c}
	}
	if result.Kind() == reflect.Struct {
		for field, v := range result.Fields() {
			if field.IsExported() {
				found = append(found, closers(v)...)
			}
		}
	}
	return found
}

// Panic is a call that panicked.
type Panic struct {
	Method string
	Value  any
}

func (p *Panic) Error() string { return fmt.Sprintf("%s panics: %v", p.Method, p.Value) }
