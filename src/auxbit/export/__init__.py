"""Export codes and hash functions: FAISS index files, ONNX models."""

from auxbit.export.faiss import index_to_faiss, to_faiss
from auxbit.export.onnx import to_onnx

__all__ = ["index_to_faiss", "to_faiss", "to_onnx"]
